// Markdown to DOM nodes. Nothing is ever parsed as HTML: what a model writes can only become the elements below.

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|__([^\s_](?:[\s\S]*?[^\s_])?)__|\*([^\s*](?:[^*]*[^\s*])?)\*|(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)|~~([^\s~](?:[\s\S]*?[^\s~])?)~~|\[([^\]]+)\]\(([^\s()]+(?:\([^\s()]*\))?)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>"')\]]+)|\\([\\`*_{}[\]()#+\-.!~|>])|( {2,}\n)/;
const SAFE = /^(https?:|mailto:)/i;

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "role") made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function link(address, ...children) {
  if (!SAFE.test(address)) return element("span", {}, ...children);
  return element("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" }, ...children);
}

function inline(text, depth = 0) {
  const out = [];
  while (text) {
    const found = depth < 12 ? INLINE.exec(text) : null;
    if (!found) { out.push(text); break; }
    if (found.index) out.push(text.slice(0, found.index));
    const [whole, , code, strong, strong2, em, em2, struck, label, address, bare, escaped] = found;
    const inner = (part) => inline(part, depth + 1);
    if (code !== undefined) out.push(element("code", {}, code.trim()));
    else if (strong ?? strong2) out.push(element("strong", {}, ...inner(strong ?? strong2)));
    else if (em ?? em2) out.push(element("em", {}, ...inner(em ?? em2)));
    else if (struck) out.push(element("del", {}, ...inner(struck)));
    else if (label) out.push(link(address, ...inner(label)));
    else if (bare) { const end = bare.replace(/[.,;:!?]+$/, ""); out.push(link(end, end), bare.slice(end.length)); }
    else if (escaped) out.push(escaped);
    else out.push(document.createElement("br"));
    text = text.slice(found.index + whole.length);
  }
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const ROW = /^\s*\|?.*\|.*$/;
const RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function fence(lines, mark, language) {
  const body = [];
  while (lines.length && !(lines[0].trim().startsWith(mark) && !lines[0].trim().replaceAll(mark[0], ""))) body.push(lines.shift());
  lines.shift();
  const code = element("code", {}, body.join("\n"));
  if (language) code.dataset.language = language.slice(0, 40);
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return element("pre", {}, code, copy);
}

function list(lines, depth) {
  const [, indent, number] = ITEM.exec(lines[0]);
  const made = element(number ? "ol" : "ul");
  if (number && number !== "1") made.start = Number(number);
  while (lines.length) {
    const found = ITEM.exec(lines[0]);
    if (!found || found[1].length < indent.length || Boolean(found[2]) !== Boolean(number)) break;
    const margin = found[0].length - found[3].length;
    const body = [found[3]];
    lines.shift();
    while (lines.length) {
      const line = lines[0];
      const deeper = line.length - line.trimStart().length > indent.length;
      if (line.trim() ? !deeper : !(lines[1] && lines[1].length - lines[1].trimStart().length > indent.length)) break;
      body.push(line.slice(Math.min(margin, line.length - line.trimStart().length)));
      lines.shift();
    }
    const inner = blocks(body, depth + 1);
    made.append(element("li", {}, ...(inner.length === 1 && inner[0].tagName === "P" ? inner[0].childNodes : inner)));
    if (lines.length > 1 && !lines[0].trim() && ITEM.test(lines[1])) lines.shift();
  }
  return made;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines) {
  const head = element("tr", {}, ...cells(lines.shift()).map((cell) => element("th", {}, ...inline(cell))));
  lines.shift();
  const body = element("tbody");
  while (lines.length && ROW.test(lines[0]) && lines[0].trim()) {
    body.append(element("tr", {}, ...cells(lines.shift()).map((cell) => element("td", {}, ...inline(cell)))));
  }
  return element("div", { className: "table" }, element("table", {}, element("thead", {}, head), body));
}

function blocks(lines, depth = 0) {
  const out = [];
  while (lines.length) {
    const line = lines[0];
    const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    const fenced = FENCE.exec(line);
    if (!line.trim()) lines.shift();
    else if (depth > 8) out.push(element("p", {}, lines.splice(0).join("\n")));
    else if (fenced) { lines.shift(); out.push(fence(lines, fenced[1], fenced[2])); }
    else if (heading) { lines.shift(); out.push(element(`h${Math.min(6, heading[1].length + 1)}`, {}, ...inline(heading[2]))); }
    else if (/^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) { lines.shift(); out.push(element("hr")); }
    else if (/^ {0,3}>/.test(line)) {
      const body = [];
      while (lines.length && /^ {0,3}>/.test(lines[0])) body.push(lines.shift().replace(/^ {0,3}> ?/, ""));
      out.push(element("blockquote", {}, ...blocks(body, depth + 1)));
    } else if (ITEM.test(line)) out.push(list(lines, depth));
    else if (lines[1] && ROW.test(line) && RULE.test(lines[1]) && lines[1].includes("-")) out.push(table(lines));
    else {
      const body = [lines.shift()];
      while (lines.length && lines[0].trim() && !FENCE.test(lines[0]) && !/^ {0,3}(#{1,6}\s|>)/.test(lines[0]) && !ITEM.test(lines[0])) body.push(lines.shift());
      out.push(element("p", {}, ...inline(body.join("\n"))));
    }
  }
  return out;
}

export function render(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"));
}
