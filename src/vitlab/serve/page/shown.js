// A panel on the page: one image with its map, its tokens and its answer.

import { drawScale, highest } from "./draw.js";
import { element, ranked, showBars, showLayers } from "./lists.js";
import {
  $, READ, announce, canPick, change, changed, hasLayers, isOfClass, model, panels, source, state,
  takesToken, viewOf,
} from "./page.js";
import { Panel, brightest, meanOf, tokenIn } from "./panel.js";
import { percent, word } from "./words.js";

export class Shown extends Panel {
  // `compare` opens or closes the second image.
  constructor(number, compare) {
    super(source, model);
    this.number = number;
    this.place = element("section", "panel");
    this.heading = element("h2", "name");
    this.here = element("button", "here");
    this.here.type = "button";
    this.here.addEventListener("click", () => change({ filling: this.number }));
    this.canvas = element("canvas", "stage");
    this.canvas.panel = this;
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.scale = element("p", "scale");
    this.scaleBar = element("canvas");
    [this.scaleBar.width, this.scaleBar.height] = [120, 8];
    drawScale(this.scaleBar);
    this.scaleText = element("span");
    this.scale.append(this.scaleBar, this.scaleText);
    this.caption = element("p", "caption");
    this.tokens = element("div", "choice tokens");
    this.tokens.setAttribute("role", "group");
    this.aboutTokens = element("p", "explained");
    this.answer = element("h2");
    this.bars = element("ul", "bars");
    this.hint = element("p", "explained");
    this.other = element("button", "other");
    this.other.type = "button";
    this.other.addEventListener("click", compare);
    this.aboutOther = element("p", "explained");
    const [look, says] = [element("div", "look"), element("div", "says")];
    look.append(this.heading, this.here, this.canvas, this.scale, this.caption, this.aboutTokens,
      this.tokens);
    says.append(this.answer, this.bars, this.hint, this.other, this.aboutOther);
    this.place.append(look, says);
    this.layerList = element("ol", "layer-list");
    $("layers").append(this.layerList);
    this.watched = new ResizeObserver(() => this.fit());
    this.watched.observe(this.canvas);
    this.listen();
    this.name();
  }

  remove() {
    this.opening?.abort();
    if (this.image) this.close();
    this.watched.disconnect();
    this.place.remove();
    this.layerList.remove();
  }

  name() {
    const two = panels.length > 1;
    this.other.textContent = word(two ? "compareEnd" : "compare");
    this.aboutOther.textContent = word("aboutCompare");
    this.other.hidden = this.number !== panels.length - 1 && panels.length > 0;
    this.aboutOther.hidden = two;
    this.here.textContent = word("here");
    this.aboutTokens.textContent = word("aboutTokens");
    this.tokens.setAttribute("aria-label", word("aboutTokens"));
    this.here.hidden = !two;
    this.hint.textContent = word("pick");
    this.hint.hidden = model.methods.relevance !== null && model.methods.gradcam !== null;
    this.answer.textContent = word(model.task === "regression" ? "value" : "answer");
    this.canvas.setAttribute("aria-label", word("stage", { name: this.image?.name ?? "" }));
    this.place.setAttribute("aria-label", this.image?.name ?? "");
    this.drawnLists = null;
  }

  fit() {
    const [, height, width] = model.input;
    const side = Math.round(this.canvas.clientWidth * (window.devicePixelRatio || 1));
    if (!side) return;
    this.canvas.style.aspectRatio = `${width} / ${height}`;
    if (this.canvas.width === side) return;
    this.canvas.width = side;
    this.canvas.height = Math.round((side * height) / width);
    if (this.image) this.redraw();
  }

  // Show an image as soon as `read` gives its pixels, unless another one is opened before.
  async show({ name, sample }, read, painted = []) {
    this.opening?.abort();
    const own = new AbortController();
    this.opening = own;
    const pixels = await read(own.signal);
    if (own.signal.aborted) return;
    this.open({ name, sample, pixels }, painted);
    this.heading.textContent = name;
    for (const [number, button] of [...$("samples").children].entries()) {
      button.setAttribute("aria-pressed",
        String(panels.some((panel) => panel.image?.sample === number)));
    }
    this.name();
    this.fit();
    changed();
  }

  // Let the pixels follow the paint of the last stroke.
  settle() {
    if (!this.image || !this.dirty) return;
    this.dirty = false;
    this.repaint();
  }

  async render(view) {
    const turn = this.begin();
    const answers = [this.compute(view), this.predict(),
      this.painted.size ? this.predictUnpainted() : null];
    this.release();
    const [found, predicted, before] = await Promise.all(answers);
    if (turn !== this.turn) return;
    this.map = found.map;
    this.shares = found.shares;
    this.view = view;
    this.redraw();
    this.showAnswer(predicted, before);
    this.describe();
    this.showTokens();
    this.here.setAttribute("aria-pressed", String(view.filling === this.number));
    this.canvas.dataset.done = performance.now();
    if (!hasLayers()) return;
    const layers = await this.layers();
    if (turn === this.turn) this.showLayers(predicted, layers);
  }

  // The map for the state of the controls, and the shares of tokens that are no patches.
  async compute(view) {
    const { method, layer, head } = view;
    if (method === null) return { map: null, shares: [] };
    if (method === "attention") {
      const rows = await this.rows(layer, tokenIn(model, layer, view.query));
      const row = head < 0 ? meanOf(rows) : rows[head];
      const grid = model.grids[layer];
      const first = row.length - grid[0] * grid[1];
      const map = { values: row.slice(first), grid, least: 0 };
      return { map, shares: [...row.subarray(0, first)] };
    }
    const map = method === "rollout" ? this.rollout(view.query) : this.mapOf(method, view.target);
    return { map: await map, shares: [] };
  }

  // Draw the image, the map and the view that it was computed for.
  redraw() {
    const view = this.view ?? viewOf();
    const { query } = view;
    const outlined = query.kind === "patch" && takesToken(view);
    const grid = view.method === "attention" ? model.grids[view.layer] : model.grid;
    const at = [query.row * grid[0] / model.grid[0], query.column * grid[1] / model.grid[1]];
    const cell = outlined ? { at: at.map(Math.floor), grid } : null;
    const cursor = this.cursor && document.activeElement === this.canvas ? this.cursor : null;
    this.draw(this.canvas, { opacity: view.opacity / 100, cell, cursor });
  }

  showAnswer(predicted, before) {
    const { target } = this.view;
    const shown = [predicted, before, target, isOfClass(this.view) && this.view.method];
    if (this.drawnLists?.every((one, place) => one === shown[place])) return;
    this.drawnLists = shown;
    this.drawnLayers = null;
    const method = isOfClass(this.view) ? this.view.method
      : ["relevance", "gradcam"].find((name) => model.methods[name] === null);
    const pick = method ? (number) => change({ target: number, method }) : null;
    showBars(this.bars, model, predicted.values,
      { before: before?.values ?? null, target, pick, mayPick: canPick });
  }

  showLayers(predicted, layers) {
    if (this.drawnLayers === layers) return;
    this.drawnLayers = layers;
    const top = model.task === "regression" ? null : ranked(predicted.values)[0];
    showLayers(this.layerList, model, layers, this.view.target ?? top);
  }

  describe() {
    this.scale.hidden = !this.map;
    if (!this.map) return;
    const { view } = this;
    const { values, grid, least } = this.map;
    const isShare = takesToken(view);
    const most = percent(highest(values));
    this.scaleText.textContent = isShare
      ? word("scale", { least: least ? percent(least) : "0", most }) : word("scaleWords");
    const parts = [];
    if (isShare) parts.push(word("outlined", { token: tokenName(this.outlined()) }));
    const first = brightest(values);
    const own = tokenIn(model, view.layer, view.query) - this.shares.length;
    if (view.method === "attention" && view.query.kind === "patch" && first === own) {
      parts.push(word("mostOwn", { value: most }));
    } else {
      const row = span(Math.floor(first / grid[1]), grid[0], model.grid[0]);
      const column = span(first % grid[1], grid[1], model.grid[1]);
      parts.push(word(isShare ? "mostFrom" : "brightest", { row, column, value: most }));
    }
    const elsewhere = this.shares.reduce((sum, share) => sum + share, 0);
    if (elsewhere > 0.0005) parts.push(word("elsewhere", { value: percent(elsewhere) }));
    if (grid[0] < model.grid[0]) parts.push(word("coarse", { rows: grid[0], columns: grid[1] }));
    if (isShare && !view.painting) parts.push(word(view.held === READ ? "pin" : "pinned"));
    this.caption.textContent = parts.join(view.language === "zh" ? "" : " ");
  }

  // Rollout of a register is not offered: it is that of the pooling.
  outlined() {
    const { method, query } = this.view;
    return method === "rollout" && query.kind === "prefix" ? READ : query;
  }

  showTokens() {
    const { method, query } = this.view;
    this.tokens.hidden = this.aboutTokens.hidden = !(hasLayers() && takesToken(this.view));
    const own = [READ];
    const first = model.pool === "cls" ? 1 : 0; // otherwise it would be there twice
    for (let index = first; index < model.prefix; index += 1) own.push({ kind: "prefix", index });
    const usable = method === "attention" ? own : [READ];
    while (this.tokens.children.length > usable.length) this.tokens.lastChild.remove();
    usable.forEach((token, place) => {
      let button = this.tokens.children[place];
      if (!button) {
        button = element("button");
        button.type = "button";
        button.addEventListener("click", () => {
          change({ held: button.token, hovered: null });
          announce();
        });
        this.tokens.append(button);
      }
      button.token = token;
      const index = token === READ ? (model.pool === "cls" ? 0 : -1) : token.index;
      const share = method === "attention" ? this.shares[index] : undefined;
      const name = tokenName(token);
      button.textContent = share === undefined ? name : `${name} · ${percent(share)}`;
      const same = token.kind === query.kind && token.index === query.index;
      button.setAttribute("aria-pressed", String(same));
    });
  }

  // Pointer and keyboard.

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [rows, columns] = model.grid;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const within = row >= 0 && row < rows && column >= 0 && column < columns;
    return within ? { kind: "patch", row, column } : null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointerup", () => this.up());
    canvas.addEventListener("pointercancel", () => this.up());
    canvas.addEventListener("pointerleave", () => {
      if (state.hovered) change({ hovered: null });
    });
    canvas.addEventListener("click", (event) => this.clicked(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.image && this.redraw());
    canvas.addEventListener("focus", () => this.image && this.redraw());
  }

  moved(event) {
    const cell = this.cellAt(event);
    if (!cell || !this.image) return;
    if (state.painting) {
      if (this.stroke) this.extend(cell);
      return;
    }
    if (state.held.kind === "patch" || state.held.kind === "prefix") return;
    const same = state.hovered?.row === cell.row && state.hovered?.column === cell.column;
    if (!same && event.pointerType !== "touch") change({ hovered: cell });
  }

  down(event) {
    const cell = this.cellAt(event);
    if (!state.painting || !cell || !this.image) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.stroke = { at: cell, erase: this.painted.has(cell.row * model.grid[1] + cell.column) };
    state.stroking = true;
    this.paint([cell], this.stroke.erase);
  }

  extend(cell) {
    this.paint(between(this.stroke.at, cell), this.stroke.erase);
    this.stroke.at = cell;
  }

  up() {
    this.stroke = null;
    state.stroking = false;
  }

  clicked(event) {
    const cell = this.cellAt(event);
    if (state.painting || !cell || event.detail === 0) return;
    this.hold(cell);
  }

  hold(cell) {
    const { held } = state;
    const same = held.kind === "patch" && held.row === cell.row && held.column === cell.column;
    change({ held: same ? READ : cell, hovered: null });
    announce();
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const [rows, columns] = model.grid;
    const [row, column] = this.cursor ?? [Math.floor(rows / 2), Math.floor(columns / 2)];
    const step = steps[event.key];
    if (step) {
      event.preventDefault();
      const next = this.cursor ? [row + step[0], column + step[1]] : [row, column];
      this.cursor = [Math.min(Math.max(next[0], 0), rows - 1),
        Math.min(Math.max(next[1], 0), columns - 1)];
      const hovered = { kind: "patch", row: this.cursor[0], column: this.cursor[1] };
      change(state.held.kind === "patch" ? { held: hovered } : { hovered });
      announce();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.hold({ kind: "patch", row, column });
    } else if (event.key.toLowerCase() === "p" && source.accepts) {
      const cell = { kind: "patch", row, column };
      this.paint([cell], this.painted.has(row * columns + column));
      announce();
    }
  }

  // Put paint on cells or, with `erase`, take it off; no cells: take all of it off.
  paint(cells, erase) {
    if (!this.image) return;
    const before = [...this.painted].join();
    if (!cells.length) this.painted.clear();
    for (const { row, column } of cells) {
      const index = row * model.grid[1] + column;
      if (erase) this.painted.delete(index);
      else this.painted.add(index);
    }
    if ([...this.painted].join() === before) return;
    this.dirty = true;
    this.redraw();
    changed();
  }
}

// Cells on the line from one to another: a fast pointer skips some.
function between(from, to) {
  const [rows, columns] = [to.row - from.row, to.column - from.column];
  const steps = Math.max(Math.abs(rows), Math.abs(columns), 1);
  return Array.from({ length: steps }, (_, i) => ({
    row: from.row + Math.round((rows * (i + 1)) / steps),
    column: from.column + Math.round((columns * (i + 1)) / steps),
  }));
}

// Places of a cell of a map on the model's grid, counted from 1: 5, or 5–6 of a coarser map.
function span(cell, cells, all) {
  const [first, last] = [Math.floor((cell * all) / cells) + 1, Math.ceil(((cell + 1) * all) / cells)];
  return first === last ? `${first}` : `${first}\u2060–\u2060${last}`;
}

function tokenName(asked) {
  if (asked.kind === "patch") {
    return word("patch", { row: asked.row + 1, column: asked.column + 1 });
  }
  if (asked.kind === "prefix") {
    const first = Number(model.class_token);
    return asked.index < first ? word("classToken")
      : word("register", { number: asked.index - first + 1 });
  }
  return word("read", { token: word(`pool_${model.pool}`) });
}
