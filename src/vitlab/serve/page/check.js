// A test of the map: the brightest patches are painted away, and as many at random. The paint and
// the map on the page stay as they are.

import { ranked } from "./lists.js";
import { $, guarded, model, panels } from "./page.js";
import { percent, word } from "./words.js";

const CHECKED = 0.2; // share of the patches that a test of a map paints away
const RANDOM = 5; // random choices that it is compared with

let running = null;
let tested = null; // the map that the words are about

export function check(panel) {
  running?.abort();
  const own = new AbortController();
  running = own;
  tested = about(panel.view);
  $("checked").textContent = word("checking");
  return guarded(async () => {
    try {
      const words = await compare(panel, own.signal);
      $("checked").textContent = panels.length > 1 ? `${panel.image.name}: ${words}` : words;
    } catch (error) {
      if (running === own) $("checked").textContent = "";
      throw error;
    }
  }, "check");
}

// Forget a test when the map becomes another one.
export function forgetCheck(view) {
  if (tested === null || tested === about(view)) return;
  running?.abort();
  tested = null;
  $("checked").textContent = "";
}

function about({ method, layer, head, target, held, language }) {
  const versions = panels.map((panel) => panel.version);
  return JSON.stringify([method, layer, head, target, held, language, versions]);
}

async function compare(panel, signal) {
  const painted = [...panel.painted];
  const { target: picked } = panel.view;
  const order = brightestFirst(panel.map).filter((cell) => !panel.painted.has(cell));
  const count = Math.min(order.length, Math.max(1, Math.round(CHECKED * model.grid[0] * model.grid[1])));
  const without = async (cells) =>
    (await panel.predictWith([...painted, ...cells], signal)).values;
  const whole = await without([]);
  const target = picked ?? (model.task === "regression" ? 0 : ranked(whole)[0]);
  let random = 0;
  for (let i = 0; i < RANDOM; i += 1) {
    random += (await without(shuffled(order).slice(0, count)))[target] / RANDOM;
  }
  const after = (await without(order.slice(0, count)))[target];
  const isValue = model.task === "regression";
  const number = isValue ? (value) => value.toPrecision(4) : percent;
  return word(isValue ? "checkedValue" : "checked", {
    label: model.labels[target], before: number(whole[target]), after: number(after),
    random: number(random), count: RANDOM,
  });
}

// Patches of the model's grid in the order of the map, whose grid may be coarser.
function brightestFirst({ values, grid }) {
  const [rows, columns] = model.grid;
  const at = (i) => {
    const row = Math.floor((Math.floor(i / columns) * grid[0]) / rows);
    return row * grid[1] + Math.floor(((i % columns) * grid[1]) / columns);
  };
  return [...Array(rows * columns).keys()].sort((a, b) => values[at(b)] - values[at(a)]);
}

function shuffled(cells) {
  const mixed = cells.map((cell) => [Math.random(), cell]).sort((a, b) => a[0] - b[0]);
  return mixed.map(([, cell]) => cell);
}
