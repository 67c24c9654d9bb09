// Lists and small maps: classes as bars, the answer of each layer, all heads.

import { putMap } from "./draw.js";
import { percent, word } from "./words.js";

const SHOWN = 5;

export function element(name, classes = "", text = "") {
  const found = document.createElement(name);
  if (classes) found.className = classes;
  if (text) found.textContent = text;
  return found;
}

export function ranked(values) {
  return [...values.keys()].sort((a, b) => values[b] - values[a]);
}

function bar(share, before = null) {
  const track = element("span", "track");
  const fill = element("span", "fill");
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  track.append(fill);
  if (before !== null) {
    const mark = element("span", "mark");
    mark.style.left = `${100 * Math.min(Math.max(before, 0), 1)}%`;
    track.append(mark);
  }
  return track;
}

// The highest classes as bars; `pick` is called with a class. Values of a regression have no bar.
export function showBars(list, model, values, { before, target, pick, mayPick }) {
  const isValue = model.task === "regression";
  const order = isValue ? [...values.keys()] : ranked(values).slice(0, SHOWN);
  if (!isValue && target !== null && !order.includes(target)) order.push(target);
  const rows = order.map((number) => {
    const row = element("li");
    const button = element("button", "class");
    button.type = "button";
    button.disabled = !(pick && mayPick(number));
    button.setAttribute("aria-pressed", String(number === target));
    button.append(element("span", "label", model.labels[number]));
    const text = isValue ? values[number].toPrecision(4) : percent(values[number]);
    const old = before ? before[number] : null;
    if (!isValue) button.append(bar(values[number], old));
    button.append(element("span", "value", text));
    if (old !== null) {
      const told = isValue ? old.toPrecision(4) : percent(old);
      button.title = word("before", { label: model.labels[number], value: text, before: told });
    }
    if (pick) button.addEventListener("click", () => pick(number));
    row.append(button);
    return row;
  });
  const focused = list.contains(document.activeElement)
    ? [...list.querySelectorAll("button")].indexOf(document.activeElement) : -1;
  list.replaceChildren(...rows);
  if (focused >= 0) list.querySelectorAll("button")[focused]?.focus();
}

// Predictions [layers, classes] as rows: the highest class of each layer, and the chosen one.
export function showLayers(list, model, { shape, values }, target) {
  const [layers, classes] = shape;
  const rows = Array.from({ length: layers }, (_, layer) => {
    const own = values.subarray(layer * classes, (layer + 1) * classes);
    const top = model.task === "regression" ? 0 : ranked(own)[0];
    const shown = target === null || target === top ? [top] : [top, target];
    const row = element("li");
    row.append(element("span", "number", word("afterLayer", { number: layer + 1 })));
    for (const number of shown) {
      const line = element("span", number === top ? "line" : "line chosen");
      const isValue = model.task === "regression";
      line.append(element("span", "label", model.labels[number]));
      if (!isValue) line.append(bar(own[number]));
      const text = isValue ? own[number].toPrecision(4) : percent(own[number]);
      line.append(element("span", "value", text));
      row.append(line);
    }
    return row;
  });
  list.replaceChildren(...rows);
}

// A button with a small map for each head of each layer; arrow keys move between them.
export class Heads {
  constructor(place, model, choose) {
    this.model = model;
    this.place = place;
    place.style.setProperty("--heads", model.heads);
    this.buttons = model.grids.map((grid, layer) =>
      Array.from({ length: model.heads }, (_, head) => {
        const button = element("button", "tiny");
        button.type = "button";
        const canvas = element("canvas");
        [canvas.height, canvas.width] = grid;
        button.append(canvas);
        button.addEventListener("click", () => choose(layer, head));
        button.addEventListener("keydown", (event) => this.move(event, layer, head, choose));
        return button;
      }));
    place.replaceChildren(...this.buttons.flatMap((row, layer) => {
      const number = element("span", "layer-number", `${layer + 1}`);
      number.setAttribute("aria-hidden", "true");
      return [number, ...row];
    }));
  }

  move(event, layer, head, choose) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const next = this.buttons[layer + step[0]]?.[head + step[1]];
    if (!next) return;
    choose(layer + step[0], head + step[1]);
    next.focus();
  }

  draw(layer, rows) {
    const grid = this.model.grids[layer];
    rows.forEach((row, head) => {
      const context = this.buttons[layer][head].firstChild.getContext("2d");
      putMap(context, row.subarray(row.length - grid[0] * grid[1]), grid);
    });
  }

  mark(chosen, head) {
    this.buttons.forEach((row, layer) => row.forEach((button, number) => {
      const pressed = layer === chosen && number === head;
      button.setAttribute("aria-pressed", String(pressed));
      button.tabIndex = pressed || (head < 0 && layer === chosen && number === 0) ? 0 : -1;
      button.setAttribute("aria-label", word("headOf", { layer: layer + 1, head: number + 1 }));
      button.title = button.getAttribute("aria-label");
    }));
  }
}
