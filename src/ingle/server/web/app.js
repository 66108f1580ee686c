// The page: conversations, the message field, and answers as they come.

import * as api from "./api.js";
import * as store from "./store.js";
import { attach, part, preview, Recorder } from "./media.js";
import { element, render } from "./markdown.js";

const at = (id) => document.getElementById(id);
const log = at("log"), entry = at("entry"), status = at("status");

let settings = store.settings.read();
let conversations = [];
let current = fresh();
let attachments = [];
let running = null; // the AbortController of the answer that is being written
const recorder = new Recorder();

function fresh() {
  return { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title: "New conversation", changed: Date.now(), messages: [] };
}

// What is sent, from what is kept.

function sent(message) {
  const out = { role: message.role, content: message.text };
  if (message.media?.length) out.content = [...message.media.map(part), { type: "text", text: message.text }];
  if (message.calls?.length) {
    out.tool_calls = message.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
  }
  if (message.reasoning) out.reasoning_content = message.reasoning;
  if (message.role === "tool") Object.assign(out, { tool_call_id: message.call, name: message.name });
  return out;
}

function body() {
  const out = { model: at("model").value, messages: current.messages.map(sent) };
  if (settings.system) out.messages.unshift({ role: "system", content: settings.system });
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (settings[name]) out[name] = Number(settings[name]);
  if (settings.reasoning_effort) out.reasoning_effort = settings.reasoning_effort;
  if (settings.tools) out.tools = JSON.parse(settings.tools).map((tool) => (tool.type ? tool : { type: "function", function: tool }));
  return out;
}

// What is shown.

function bar(index, message) {
  const row = element("div", { className: "tools-row" });
  const button = (name, work) => {
    const made = element("button", { type: "button", className: "plain" }, name);
    made.addEventListener("click", work);
    row.append(made);
  };
  if (message.role === "user") button("Edit", () => edit(index));
  if (message.role === "assistant") {
    button("Copy", () => navigator.clipboard.writeText(message.text));
    button("Retry", () => retry(index));
    if (message.speed) row.append(message.speed);
  }
  return row;
}

function block(name, text, open = false) {
  return element("details", { open }, element("summary", {}, name), element("div", { className: "body" }, text));
}

function call(entry, message) {
  let shown = entry.arguments;
  try { shown = JSON.stringify(JSON.parse(entry.arguments), null, 2); } catch { /* shown as it is */ }
  const made = element("details", { open: true, className: "call" }, element("summary", {}, `Calls ${entry.name}`), element("pre", { className: "args" }, shown));
  const known = current.messages.find((m) => m.role === "tool" && m.call === entry.id);
  if (known) made.append(element("div", { className: "body" }, `Result: ${known.text}`));
  else if (current.messages.at(-1) === message && !running) made.append(asking(entry));
  return made;
}

function asking(entry) {
  const field = element("input", { placeholder: "What it gives", "aria-label": `Result of ${entry.name}` });
  const form = element("form", { className: "result" }, field, element("button", {}, "Give"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const waiting = current.messages.findLast((m) => m.calls).calls.filter((c) => c.id !== entry.id && !current.messages.some((m) => m.call === c.id));
    current.messages.push({ role: "tool", call: entry.id, name: entry.name, text: field.value });
    if (waiting.length) draw(); else answer();
  });
  return form;
}

function article(message, index) {
  const made = element("article", { className: message.role, "aria-label": message.role === "user" ? "You" : "Answer" });
  made.append(element("span", { className: "sr" }, message.role === "user" ? "You: " : "Answer: "));
  if (message.media?.length) made.append(element("div", { className: "media" }, ...message.media.map(preview)));
  if (message.reasoning) made.append(block("Reasoning", message.reasoning, !message.text && Boolean(running)));
  if (message.role === "user") { if (message.text) made.append(element("div", { className: "bubble" }, message.text)); }
  else made.append(element("div", { className: "markdown" }, ...render(message.text)));
  for (const one of message.calls ?? []) made.append(call(one, message));
  if (message.problem) made.append(element("p", { className: "problem", role: "alert" }, message.problem));
  if (!running || index < current.messages.length - 1) made.append(bar(index, message));
  return made;
}

function draw() {
  log.replaceChildren(...current.messages.map((m, i) => (m.role === "tool" ? "" : article(m, i))));
  log.scrollTop = log.scrollHeight;
  at("conversations").replaceChildren(...conversations.map((one) => {
    const name = element("button", { type: "button", className: "name" }, one.title);
    if (one.id === current.id) name.setAttribute("aria-current", "true");
    name.addEventListener("click", () => open(one));
    const gone = element("button", { type: "button", className: "plain", "aria-label": `Delete ${one.title}` }, "×");
    gone.addEventListener("click", async () => {
      await store.remove(one.id);
      conversations = conversations.filter((other) => other.id !== one.id);
      if (one.id === current.id) open(fresh()); else draw();
    });
    return element("li", {}, name, gone);
  }));
  at("stop").hidden = !running;
  at("send").hidden = Boolean(running);
}

function redraw(message) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  log.lastElementChild?.replaceWith(article(message, current.messages.length - 1));
  if (near) log.scrollTop = log.scrollHeight;
}

// What happens.

async function answer() {
  const message = { role: "assistant", text: "" };
  let request;
  try { request = body(); } catch (error) { status.textContent = `Tools in the settings are no JSON: ${error.message}`; return; }
  current.messages.push(message);
  const conversation = current, abort = running = new AbortController();
  status.textContent = "Waiting for the answer";
  draw();
  let first = 0, tokens = 0, pending = false;
  const show = () => {
    if (pending || current !== conversation) return;
    pending = true; // one drawing for each frame, however fast tokens come
    requestAnimationFrame(() => { pending = false; if (running === abort && current === conversation) redraw(message); });
  };
  try {
    for await (const chunk of api.chat(request, settings.key, abort.signal)) {
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
      const delta = chunk.choices[0]?.delta;
      if (!delta) continue;
      if (!first && (delta.content || delta.reasoning_content || delta.tool_calls)) { first = performance.now(); status.textContent = ""; }
      message.text += delta.content ?? "";
      if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
      for (const one of delta.tool_calls ?? []) {
        message.calls ??= [];
        message.calls[one.index] ??= { id: one.id, name: one.function.name, arguments: "" };
        message.calls[one.index].arguments += one.function.arguments ?? "";
      }
      show();
    }
    const seconds = (performance.now() - first) / 1000;
    if (tokens > 1 && seconds > 0) message.speed = `${tokens} tokens, ${((tokens - 1) / seconds).toFixed(1)} tokens/s`;
  } catch (error) {
    if (error.name === "AbortError") message.speed = "stopped";
    else message.problem = error instanceof api.Refused ? error.message : `the server cannot be reached (${error.message})`;
  }
  if (running === abort) running = null;
  status.textContent = "";
  await keep(conversation);
  draw();
  if (current === conversation) entry.focus();
}

async function keep(conversation) {
  conversation.changed = Date.now();
  const asked = conversation.messages.find((m) => m.role === "user");
  conversation.title = (asked?.text || asked?.media?.[0]?.name || "New conversation").slice(0, 60);
  await store.save(conversation);
  conversations = await store.all();
}

function send() {
  const text = entry.value.trim();
  if (running || (!text && !attachments.length)) return;
  current.messages.push({ role: "user", text, media: attachments });
  attachments = [];
  entry.value = "";
  fit();
  showAttachments();
  answer();
}

function stop() { running?.abort(); }

function edit(index) {
  stop();
  const message = current.messages[index];
  entry.value = message.text;
  attachments = message.media ?? [];
  current.messages = current.messages.slice(0, index);
  fit();
  showAttachments();
  draw();
  entry.focus();
}

function retry(index) {
  stop();
  current.messages = current.messages.slice(0, index);
  answer();
}

function open(conversation) {
  stop();
  current = conversation;
  at("sidebar").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
  draw();
  entry.focus();
}

function fit() {
  entry.style.height = "auto";
  entry.style.height = `${entry.scrollHeight}px`;
}

function showAttachments() {
  at("attachments").replaceChildren(...attachments.map((one) => {
    const gone = element("button", { type: "button", className: "plain", "aria-label": `Remove ${one.name}` }, "×");
    gone.addEventListener("click", () => { attachments = attachments.filter((other) => other !== one); showAttachments(); });
    return element("li", {}, one.kind === "image" ? preview(one) : one.name, gone);
  }));
}

async function take(files) {
  for (const file of files) {
    try {
      const one = await attach(file);
      attachments = [...attachments, one];
      status.textContent = "";
    } catch (error) { status.textContent = error.message; }
  }
  showAttachments();
}

async function record() {
  const button = at("record");
  if (button.getAttribute("aria-pressed") === "true") {
    button.setAttribute("aria-pressed", "false");
    await take([await recorder.stop()]);
    return;
  }
  try { await recorder.start(); button.setAttribute("aria-pressed", "true"); status.textContent = "Recording: press Record again to end"; }
  catch (error) { status.textContent = `No microphone: ${error.message}`; }
}

async function listModels() {
  try {
    const data = await api.models(settings.key);
    at("model").replaceChildren(...data.map((model) => element("option", {}, model.id)));
    if (data.some((model) => model.id === settings.model)) at("model").value = settings.model;
    status.textContent = "";
  } catch (error) {
    status.textContent = `${error.message} (Settings has a field for the API key)`;
  }
}

function openSettings() {
  const form = at("settings").querySelector("form");
  for (const field of form.elements) if (field.name) field.value = settings[field.name] ?? "";
  at("settings").showModal();
}

at("settings").querySelector("form").addEventListener("submit", (event) => {
  const form = event.target, problem = form.querySelector(".problem");
  const values = Object.fromEntries(new FormData(form));
  problem.textContent = "";
  try { if (values.tools && !Array.isArray(JSON.parse(values.tools))) throw new Error("expected a list"); }
  catch (error) { problem.textContent = `Tools: ${error.message}`; event.preventDefault(); return; }
  settings = { ...settings, ...values };
  store.settings.write(settings);
  listModels();
});

at("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
entry.addEventListener("input", fit);
entry.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("settings").open) stop();
  if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) { event.preventDefault(); open(fresh()); }
});
document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) { event.preventDefault(); take(event.clipboardData.files); } });
document.addEventListener("dragover", (event) => { event.preventDefault(); at("composer").classList.add("over"); });
document.addEventListener("dragleave", () => at("composer").classList.remove("over"));
document.addEventListener("drop", (event) => { event.preventDefault(); at("composer").classList.remove("over"); take(event.dataTransfer.files); });
at("files").addEventListener("change", (event) => { take([...event.target.files]); event.target.value = ""; });
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", () => open(fresh()));
at("record").addEventListener("click", record);
at("settings-open").addEventListener("click", openSettings);
at("menu").addEventListener("click", () => {
  const shown = at("sidebar").classList.toggle("open");
  at("menu").setAttribute("aria-expanded", String(shown));
});
at("model").addEventListener("change", () => { settings.model = at("model").value; store.settings.write(settings); });

conversations = await store.all();
draw();
await listModels();
