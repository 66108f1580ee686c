// Files and recordings to message parts, and to something that can be looked at.

import { element } from "./markdown.js";

const read = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

export async function attach(file) {
  const kind = file.type.split("/")[0];
  if (!["image", "audio", "video"].includes(kind)) throw new Error(`${file.name || "this"} is ${file.type || "of no known kind"}: pictures, sounds and clips can be attached`);
  return { kind, name: file.name || kind, url: await read(file) };
}

export function part({ kind, url }) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  if (kind === "video") return { type: "video_url", video_url: { url } };
  return { type: "audio_url", audio_url: { url } };
}

export function preview({ kind, name, url }) {
  if (!/^data:(image|audio|video)\//.test(url)) return element("span", {}, name);
  if (kind === "image") return element("img", { src: url, alt: name });
  return element(kind, { src: url, controls: true, "aria-label": name });
}

export class Recorder {
  async start() {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    this.recorder = new MediaRecorder(stream);
    this.pieces = [];
    this.recorder.ondataavailable = (event) => this.pieces.push(event.data);
    this.recorder.start();
  }

  async stop() {
    const ended = new Promise((resolve) => { this.recorder.onstop = resolve; });
    this.recorder.stop();
    await ended;
    this.recorder.stream.getTracks().forEach((track) => track.stop());
    return new File(this.pieces, "recording", { type: this.recorder.mimeType.split(";")[0] });
  }
}
