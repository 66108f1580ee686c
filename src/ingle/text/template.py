"""Render a checkpoint's chat template: a stranger's program, run in a sandbox with limits.

Jinja's sandbox keeps a template from reaching Python. On top of it: sizes of source, values and
output are bounded where they could grow, and a render is interrupted at its deadline, inside loops
that print nothing too.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ingle.errors import CheckpointError, InvalidRequest

MAX_SOURCE_CHARS = 1024 * 1024
MAX_TEXT_CHARS = 32 * 1024 * 1024  # of the output and of any string on the way
MAX_ITEMS = 1_000_000
MAX_NUMBER_BITS = 4096
_FORBIDDEN_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate"})
_FORBIDDEN_FILTERS = (
    "center",
    "format",
    "wordwrap",
    "pprint",
    "xmlattr",
    "urlize",
    "batch",
    "slice",
    "filesizeformat",
)


class _TooLarge(SecurityError):
    pass


class _Deadline(BaseException):
    """Raised inside a render that is out of time. Not an Exception: no template code catches it."""


class _RaisedByTemplate(TemplateError):
    pass


class _Generator(CodeGenerator):
    """Jinja's own generator joins the parts of `a ~ b` unseen; here the environment checks them."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.checked_join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def checked_join(self, parts: Sequence[Any]) -> str:
        return _bounded("".join(_bounded_parts(parts)))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _check_size(len(left) + len(right), left)
        elif operator == "*":
            for sized, count in ((left, right), (right, left)):
                if isinstance(sized, (str, list, tuple)) and isinstance(count, int):
                    _check_size(len(sized) * max(0, count), sized)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(0, right))
        elif operator == "%" and isinstance(left, (str, bytes)):
            raise _TooLarge("string formatting with % is not available in chat templates")
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name in _FORBIDDEN_METHODS:
                raise _TooLarge(f"str.{name} is not available in chat templates")
            if name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
                _check_size(len(owner) + owner.count(args[0]) * max(0, len(args[1]) - len(args[0])), owner)
            if name == "join" and args:
                return owner.join(_bounded_parts(list(args[0]), len(owner)))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's guarded `str.format`, for plain fields only: a width could ask for any size."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def checked(*args: Any, **kwargs: Any) -> str:
            if ":" in pattern:
                raise _TooLarge("format specifications are not available in chat templates")
            widest = max((len(str(a)) for a in (*args, *kwargs.values())), default=0)
            _check_size(len(pattern) + pattern.count("{") * widest, pattern)
            return wrapped(*args, **kwargs)

        return checked


def _check_size(size: int, like: Any) -> None:
    limit = MAX_TEXT_CHARS if isinstance(like, str) else MAX_ITEMS
    if size > limit:
        raise _TooLarge(f"a value of size {size} is over the limit of {limit}")


def _check_bits(bits: int) -> None:
    if bits > MAX_NUMBER_BITS:
        raise _TooLarge(f"a number of {bits} bits is over the limit of {MAX_NUMBER_BITS}")


def _bounded(text: str) -> str:
    _check_size(len(text), text)
    return text


def _bounded_parts(parts: Sequence[Any], separator: int = 0) -> list[str]:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)) + separator * len(texts), "")
    return texts


def _join_filter(value: Any, d: str = "", attribute: str | None = None) -> str:
    items = [item[attribute] if attribute else item for item in value]
    return d.join(_bounded_parts(items, len(d)))


def _replace_filter(value: Any, old: str, new: str) -> str:
    text = str(value)
    _check_size(len(text) + text.count(old) * max(0, len(new) - len(old)), text)
    return text.replace(old, new)


def _indent_filter(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * min(int(width), 1000)
    text = str(value)
    _check_size(len(text) + (text.count("\n") + 1) * len(pad), text)
    lines = text.split("\n")
    kept = [pad + line if (i or first) and (line or blank) else line for i, line in enumerate(lines)]
    return "\n".join(kept)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers has it: plain JSON, no HTML escapes, no ASCII escapes."""
    chosen: dict[str, Any] = {"ensure_ascii": False}
    chosen.update({k: v for k, v in options.items() if k in ("ensure_ascii", "separators", "sort_keys")})
    indent = None if indent is None else min(int(indent), 16)
    return _bounded(json.dumps(value, indent=indent, **chosen))


def _raise_exception(message: object) -> None:
    raise _RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(str(form)[:256])


class ChatTemplate:
    """A compiled template. Thread-safe.

    Raises:
        CheckpointError: it is too long or does not compile.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise CheckpointError(
                f"the chat template has {len(source)} characters, the limit is {MAX_SOURCE_CHARS}"
            )
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        for name in _FORBIDDEN_FILTERS:
            environment.filters.pop(name, None)
        environment.filters.update(
            tojson=_tojson, join=_join_filter, replace=_replace_filter, indent=_indent_filter
        )
        environment.globals.pop("lipsum", None)
        names = cast("dict[str, Any]", environment.globals)
        names.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise CheckpointError(f"the chat template does not compile: {_line(error)}") from None
        self.source = source
        self._special = dict(special_tokens or {})
        self._timeout_s = timeout_s

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text.

        Raises:
            InvalidRequest: the template refused the messages, failed, or went over a limit.
        """
        variables = {
            **self._special,
            **(extra or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return _within(self._timeout_s, lambda: self._collect(variables))
        except _RaisedByTemplate as error:
            raise InvalidRequest(f"the model's chat template refuses: {error}", param="messages") from None
        except _Deadline:
            message = f"the chat template took longer than {self._timeout_s:g} s"
            raise InvalidRequest(message, param="messages") from None
        except Exception as error:  # whatever a template's code can raise
            raise InvalidRequest(f"the chat template failed: {_line(error)}", param="messages") from None

    def _collect(self, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(variables):
            size += len(part)
            _check_size(size, part)
            parts.append(part)
        return "".join(parts)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _within(timeout_s: float, work: Callable[[], str]) -> str:
    """Run `work` on its own thread and interrupt it there when the time is over."""
    outcome: dict[str, Any] = {}
    done = threading.Event()

    def main() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error
        finally:
            done.set()

    thread = threading.Thread(target=main, name="ingle-template", daemon=True)
    thread.start()
    if not done.wait(timeout_s):
        # Delivered between two byte codes; sent again in case the first fell into the handler above.
        for _ in range(100):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Deadline)
            )
            thread.join(0.05)
            if not thread.is_alive():
                break
        raise _Deadline
    thread.join()
    error = outcome.get("error")
    if error is not None:
        raise cast("BaseException", error).with_traceback(None)
    return cast("str", outcome["value"])
