// Where answers come from: a running server, or files computed before. Numbers are little-endian.

import { word } from "./words.js";

export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function receive(response) {
  if (response.ok) return response;
  let message = `${response.status}`;
  try {
    message = (await response.json()).error || message;
  } catch {
    // An answer without JSON has only its status.
  }
  throw new Refusal(message, response.status);
}

async function send(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(word("offline"));
  }
}

async function bytes(address, options) {
  return (await receive(await send(address, options))).arrayBuffer();
}

// A server: `vitlab explore`, `vitlab serve`.
class Server {
  accepts = true; // images of the visitor, painted pixels

  // Facts about the model, as soon as it is loaded (503) and its weights are opened (408).
  async model() {
    for (;;) {
      const answer = await send("explore/model");
      if (![408, 503].includes(answer.status)) return (await receive(answer)).json();
      await new Promise((done) => { setTimeout(done, 400); });
    }
  }

  sampleAddress(number) {
    return `explore/samples/${number}`;
  }

  async samplePixels(number, signal) {
    return new Uint8Array(await bytes(`explore/samples/${number}/pixels`, { signal }));
  }

  async pixels(file, signal) {
    return new Uint8Array(await bytes("explore/pixels", { method: "POST", body: file, signal }));
  }

  async ask(what, image, parameters, signal) {
    const query = new URLSearchParams(parameters).toString();
    const address = `explore/${what}${query ? `?${query}` : ""}`;
    const answer = await receive(
      await send(address, { method: "POST", body: image.pixels, signal }));
    const shape = answer.headers.get("x-shape").split(",").map(Number);
    return { shape, values: new Float32Array(await answer.arrayBuffer()) };
  }
}

// Files of `vitlab explore --static`: the samples only, as they are.
class Files {
  accepts = false;

  async model() {
    this.facts = await (await receive(await send("data/model.json"))).json();
    return this.facts;
  }

  sampleAddress(number) {
    return `data/${number}/image.png`;
  }

  async samplePixels(number, signal) {
    return new Uint8Array(await bytes(`data/${number}/pixels.bin`, { signal }));
  }

  async ask(what, image, parameters, signal) {
    const file = (name) => bytes(`data/${image.sample}/${name}.bin`, { signal });
    if (what === "attention") {
      const { layer } = parameters;
      return this.attention(await file(`attention-${layer}`), this.facts.tokens[layer]);
    }
    if (what !== "map") {
      const values = new Float32Array(await file(what));
      return { shape: this.facts.shapes[what], values };
    }
    const shape = this.facts.shapes[parameters.method];
    const values = new Float32Array(await file(parameters.method));
    const best = new Float32Array(await file("predict"));
    const target = parameters.target ?? best.indexOf(best.reduce((a, b) => Math.max(a, b)));
    const start = this.facts.targets.indexOf(target) * shape[0] * shape[1];
    return { shape, values: values.subarray(start, start + shape[0] * shape[1]) };
  }

  // For each head and token, the highest value of its row, then all rows in 8 bits as parts of it.
  attention(buffer, tokens) {
    const count = this.facts.heads * (tokens + 1);
    const highest = new Float32Array(buffer, 0, count);
    const parts = new Uint8Array(buffer, 4 * count);
    const scaled = (part, i) => (part / 255) * highest[Math.floor(i / tokens)];
    return { values: Float32Array.from(parts, scaled) };
  }
}

export async function openSource() {
  return document.documentElement.dataset.source === "files" ? new Files() : new Server();
}
