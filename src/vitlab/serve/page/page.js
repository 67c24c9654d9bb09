// What the parts of the page share: the model, the state of the controls, and changes of it.

import { OPACITY } from "./link.js";
import { language } from "./words.js";

export const READ = { kind: "read" }; // the token or tokens that the classifier reads

export const $ = (id) => document.getElementById(id);

export const panels = [];
export let source;
export let model;

export function setModel(where, facts) {
  [source, model] = [where, facts];
}

export const state = {
  method: null, layer: 0, head: -1, held: READ, hovered: null, target: null, opacity: OPACITY,
  painting: false, filling: 0, language: language(),
};

export const isOfClass = () => state.method === "relevance" || state.method === "gradcam";
export const takesToken = () => state.method === "attention" || state.method === "rollout";
export const query = () => (state.held !== READ ? state.held : state.hovered ?? READ);
export const canPick = (target) => model.targets?.includes(target) ?? true; // all, if none are named

// Count what is under way, for readers of the page that are programs.
let working = 0;
function busy(step) {
  working += step;
  document.body.setAttribute("aria-busy", String(working > 0));
}

// Run some work, and show its error.
export async function guarded(work) {
  busy(1);
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    $("error").textContent = error.message;
    $("error").hidden = false;
  } finally {
    busy(-1);
  }
}

let render = async () => {};
export function whenChanged(work) {
  render = work;
}

export function change(values) {
  Object.assign(state, values);
  changed();
}

let frame = 0;
export function changed() {
  if (frame) return;
  busy(1);
  frame = requestAnimationFrame(() => {
    frame = 0;
    guarded(render).finally(() => busy(-1));
  });
}

export function announce() {
  setTimeout(() => {
    $("live").textContent = panels.map((panel) => panel.caption.textContent).join(" ");
  }, 150);
}
