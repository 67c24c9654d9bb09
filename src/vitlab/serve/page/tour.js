// The tour: steps that set the controls and say what is seen. It needs a Vision Transformer.

import { OPACITY } from "./link.js";
import { element } from "./lists.js";
import { $, READ, announce, change, model, panels } from "./page.js";
import { word } from "./words.js";

const plain = { method: "attention", head: -1, held: READ, hovered: null, painting: false, opacity: OPACITY };

// Each step: its words, the state of the controls that it shows, and the slider to be moved.
function steps() {
  const [rows, columns] = model.grid;
  const middle = { kind: "patch", row: Math.floor(rows / 2), column: Math.floor(columns / 2) };
  const last = model.grids.length - 1;
  const { method, ...place } = plain;
  return [
    ["tourTokens", { ...place, opacity: 0, held: middle }],
    ["tourAttention", { ...plain, held: middle, layer: 0 }],
    ["tourHeads", { ...plain, held: middle, layer: 0, head: 0 }, "head"],
    ["tourLayers", { ...plain, held: middle, layer: Math.floor(last / 2) }, "layer"],
    ["tourAnswer", { ...plain, layer: last }],
    ["tourRollout", { ...place, method: "rollout" }],
    ["tourRelevance", { ...place, method: "relevance" }],
  ].filter(([, set]) => !set.method || model.methods[set.method] === null);
}

let number = -1;

export function listenToTour() {
  $("tour").addEventListener("click", () => show(0));
  $("tour-back").addEventListener("click", () => show(number - 1));
  $("tour-next").addEventListener("click", () => show(number + 1));
  $("tour-end").addEventListener("click", () => show(-1));
  $("tour-slider").addEventListener("input", () => {
    change({ [steps()[number][2]]: Number($("tour-slider").value) });
  });
}

// The slider of the step, as the page's own: that one may be out of sight.
export function showTourSlider() {
  const control = steps()[number]?.[2];
  $("tour-control").hidden = !control;
  if (!control) return;
  $("tour-name").textContent = $(`${control}-name`).textContent;
  for (const name of ["min", "max", "value"]) $("tour-slider")[name] = $(control)[name];
}

function show(wanted) {
  const all = steps();
  number = wanted < all.length ? wanted : -1;
  $("tour-card").hidden = number < 0;
  if (number < 0) {
    $("tour").focus();
    return;
  }
  change(all[number][1]);
  nameTour();
  panels[0].canvas.scrollIntoView({ block: "start" });
  $("tour-title").focus({ preventScroll: true });
  announce();
}

// Words of the current step, in the current language.
export function nameTour() {
  if (number < 0) return;
  const all = steps();
  const [rows, columns] = model.grid;
  const [, height, width] = model.input;
  const values = {
    height, width, rows, columns, count: rows * columns, layers: model.grids.length, heads: model.heads,
    read: word(`pool_${model.pool}`),
  };
  const [title, ...parts] = word(all[number][0], values).split("|");
  $("tour-title").textContent = `${number + 1}/${all.length} · ${title}`;
  $("tour-text").replaceChildren(...parts.map((text) => element("p", "", text)));
  $("tour-back").hidden = number === 0;
  $("tour-next").textContent = word(number === all.length - 1 ? "tourDone" : "tourNext");
}
