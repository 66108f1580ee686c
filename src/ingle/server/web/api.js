// The server, as any other client sees it.

export class Refused extends Error {}

async function told(answer) {
  let message = `the server answered ${answer.status}`;
  try { message = (await answer.json()).error.message; } catch { /* no JSON: the status has to do */ }
  return new Refused(message);
}

const headers = (key) => ({ "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) });

export async function models(key) {
  const answer = await fetch("/v1/models", { headers: headers(key) });
  if (!answer.ok) throw await told(answer);
  return (await answer.json()).data;
}

// Yields the chunks of a streamed chat completion.
export async function* chat(body, key, signal) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", signal, headers: headers(key),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  if (!answer.ok) throw await told(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message);
      yield chunk;
    }
  }
}
