// One image: its pixels, the paint on them, and everything computed from them.

import { drawStage, highest, imageCanvas, lowest, mapCanvas } from "./draw.js";

const MAPS = 400; // answers that are kept

export class Panel {
  constructor(source, model) {
    this.source = source;
    this.model = model;
    this.image = null;
    this.map = null; // { values, grid, least }
    this.shares = []; // attention to tokens that are no patches
    this.painted = new Set();
    this.turn = 0; // number of the newest rendering; answers to an older one are not shown
    this.version = 0; // number of the newest pixels
    this.answers = new Map();
    this.wanted = new Set();
    this.life = new AbortController();
  }

  // An image: { name, sample, pixels }; paint is put on again, if it is given.
  open(image, painted = []) {
    this.close();
    this.life = new AbortController();
    this.image = { ...image, original: image.pixels };
    this.painted = new Set(painted);
    this.before = null;
    this.map = null;
    this.repaint();
  }

  // Forget the image: nothing more of it is computed or shown.
  close() {
    this.begin();
    this.life.abort();
    this.abort(() => true);
  }

  // Pixels with paint on cells.
  pixelsWith(cells) {
    const [channels, height, width] = this.model.input;
    const [rows, columns] = this.model.grid;
    const pixels = this.image.original.slice();
    for (const index of cells) {
      const [row, column] = [Math.floor(index / columns), index % columns];
      const [top, bottom] = edges(row, rows, height);
      const [left, right] = edges(column, columns, width);
      for (let channel = 0; channel < channels; channel += 1) {
        for (let y = top; y < bottom; y += 1) {
          const start = (channel * height + y) * width;
          pixels.fill(this.model.fill[channel], start + left, start + right);
        }
      }
    }
    return pixels;
  }

  // Make the pixels follow the paint; everything is then computed again.
  repaint() {
    this.abort(() => true);
    this.answers = new Map();
    this.image.pixels = this.pixelsWith(this.painted);
    this.colourful = imageCanvas(this.model.input, this.image.pixels);
    this.grey = imageCanvas(this.model.input, this.image.pixels, true);
    this.version += 1;
  }

  // Begin a rendering; returns its turn.
  begin() {
    this.wanted = new Set();
    this.turn += 1;
    return this.turn;
  }

  // Abort requests that only an older rendering needs, after those of the newest one were made.
  release() {
    this.abort((entry, key) => entry.passing && !this.wanted.has(key));
  }

  abort(chosen) {
    for (const [key, entry] of this.answers) {
      if (entry.done || !chosen(entry, key)) continue;
      entry.request.abort();
      this.answers.delete(key);
    }
  }

  // Answer of the source, kept for these pixels. A `passing` one is of one token or class.
  ask(what, parameters = {}, passing = false) {
    const key = `${what} ${JSON.stringify(parameters)}`;
    this.wanted.add(key);
    if (!this.answers.has(key)) {
      if (this.answers.size > MAPS) this.answers.delete(this.answers.keys().next().value);
      const entry = { passing, done: false, request: new AbortController() };
      entry.answer = this.source.ask(what, this.image, parameters, entry.request.signal);
      entry.answer.then(() => { entry.done = true; }, () => {
        if (this.answers.get(key) === entry) this.answers.delete(key);
      });
      this.answers.set(key, entry);
    }
    return this.answers.get(key).answer;
  }

  predict() {
    return this.painted.size ? this.ask("predict") : this.predictUnpainted();
  }

  // Prediction of the image without paint, kept as long as the image.
  predictUnpainted() {
    if (!this.before) {
      const own = this.predictWith([], this.life.signal);
      own.catch(() => { if (this.before === own) this.before = null; });
      this.before = own;
    }
    return this.before;
  }

  // Prediction of the image with paint on these cells only; what is shown stays.
  predictWith(cells, signal) {
    const image = { ...this.image, pixels: this.pixelsWith(cells) };
    return this.source.ask("predict", image, {}, signal);
  }

  layers() {
    return this.ask("layers");
  }

  // Attention of one token in a layer: a row for each head.
  async rows(layer, token) {
    const tokens = this.model.tokens[layer];
    const single = this.model.rows_only;
    const { values } = await this.ask("attention", single ? { layer, token } : { layer }, single);
    const length = single ? tokens : (tokens + 1) * tokens;
    const first = single ? 0 : token * tokens;
    return Array.from({ length: this.model.heads }, (_, head) => {
      const start = head * length + first;
      return values.subarray(start, start + tokens);
    });
  }

  // Rollout of a patch, or of what the classifier reads.
  async rollout(query) {
    const grid = this.model.grid;
    const token = query.kind === "patch" ? query.row * grid[1] + query.column : grid[0] * grid[1];
    const single = this.model.rows_only;
    const found = await this.ask("rollout", single ? { token } : {}, single);
    const start = single ? 0 : token * grid[0] * grid[1];
    const values = found.values.subarray(start, start + grid[0] * grid[1]);
    return { values, grid, least: lowest(values) };
  }

  async mapOf(method, target) {
    const parameters = target === null ? { method } : { method, target };
    const { shape, values } = await this.ask("map", parameters, true);
    return { values, grid: shape, least: lowest(values) };
  }

  draw(canvas, options) {
    const { map } = this;
    canvas.shown = map;
    drawStage(canvas, {
      colourful: this.colourful,
      grey: this.grey,
      map: map && mapCanvas(map),
      grid: this.model.grid,
      painted: this.painted,
      ...options,
    });
  }
}

// Pixels [first, last) of a cell: those whose place times cells, divided by the side, is the cell.
export function edges(cell, cells, side) {
  return [Math.ceil((cell * side) / cells), Math.ceil(((cell + 1) * side) / cells)];
}

// Index of the token in a layer whose grid may be coarser; the row after all tokens is the pooling's.
export function tokenIn(model, layer, query) {
  const tokens = model.tokens[layer];
  if (query.kind === "read") return tokens;
  if (query.kind === "prefix") return query.index;
  const [rows, columns] = model.grids[layer];
  const row = Math.floor((query.row * rows) / model.grid[0]);
  const column = Math.floor((query.column * columns) / model.grid[1]);
  return tokens - rows * columns + row * columns + column;
}

export function meanOf(rows) {
  const mean = new Float32Array(rows[0].length);
  for (const row of rows) for (let i = 0; i < row.length; i += 1) mean[i] += row[i];
  return mean.map((value) => value / rows.length);
}

export function brightest(values) {
  return values.indexOf(highest(values));
}
