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
  painting: false, stroking: false, filling: 0, language: language(),
};

// A copy of the state: what one rendering shows, whatever is changed before it is done.
export const viewOf = () => ({
  ...state, query: state.held !== READ ? state.held : state.hovered ?? READ,
});
export const isOfClass = (view) => view.method === "relevance" || view.method === "gradcam";
export const takesToken = (view) => view.method === "attention" || view.method === "rollout";
export const hasLayers = () => model.methods.attention === null;
export const canPick = (target) => model.targets?.includes(target) ?? true; // all, if none are named

// Count what is under way, for readers of the page that are programs.
let working = 0;
function busy(step) {
  working += step;
  document.body.setAttribute("aria-busy", String(working > 0));
}

let failed = null; // the kind of work whose error is shown

export function hideError() {
  failed = null;
  $("error").hidden = true;
}

// Run some work, and show its error until work of the same kind succeeds.
export async function guarded(work, kind) {
  busy(1);
  try {
    await work();
    if (failed === kind) hideError();
  } catch (error) {
    if (error.name === "AbortError") return;
    failed = kind;
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
let rendered = Promise.resolve();
export function changed() {
  if (frame) return;
  busy(1);
  frame = requestAnimationFrame(async () => {
    if (state.stroking) await rendered; // otherwise each step of a stroke would end the last one
    frame = 0;
    rendered = guarded(() => render(viewOf()), "view");
    await rendered;
    if (spoken && !frame) speakCaptions();
    busy(-1);
  });
}

// Have a screen reader read the captions as soon as they are those of the new state.
let spoken = false;
export function announce() {
  spoken = true;
  changed();
}

function speakCaptions() {
  spoken = false;
  $("live").textContent = panels.map((panel) => panel.caption.textContent).join(" ");
}
