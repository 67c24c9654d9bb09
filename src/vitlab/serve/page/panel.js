// One image: its pixels, the paint on them, and everything computed from them.

import { drawStage, highest, imageCanvas, lowest, mapCanvas } from "./draw.js";

const MAPS = 400; // maps that are kept

export class Panel {
  constructor(source, model) {
    this.source = source;
    this.model = model;
    this.image = null;
    this.map = null; // { values, grid, elsewhere }
    this.shares = []; // attention to tokens that are no patches
  }

  // An image: { name, sample, pixels }; paint is put on again, if it is given.
  async open(image, painted = []) {
    this.image = { ...image, original: image.pixels };
    this.painted = new Set(painted);
    this.before = null;
    this.repaint();
    if (this.painted.size) {
      this.before = await this.source.ask("predict", { ...image, pixels: this.image.original });
    }
  }

  repaint() {
    const [channels, height, width] = this.model.input;
    const [rows, columns] = this.model.grid;
    const pixels = this.image.original.slice();
    for (const index of this.painted) {
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
    this.image.pixels = pixels;
    this.colourful = imageCanvas(this.model.input, pixels);
    this.grey = imageCanvas(this.model.input, pixels, true);
    this.cache = new Map();
    this.version = (this.version || 0) + 1;
  }

  remember(key, compute) {
    if (!this.cache.has(key)) {
      if (this.cache.size > MAPS) this.cache.delete(this.cache.keys().next().value);
      const found = compute();
      found.catch(() => this.cache.delete(key));
      this.cache.set(key, found);
    }
    return this.cache.get(key);
  }

  predict() {
    return this.remember("predict", () => this.source.ask("predict", this.image));
  }

  layers() {
    return this.remember("layers", () => this.source.ask("layers", this.image));
  }

  // Attention of one token in a layer: a row for each head.
  async rows(layer, token) {
    const tokens = this.model.tokens[layer];
    const single = this.model.rows_only;
    const parameters = single ? { layer, token } : { layer };
    const key = single ? `attention ${layer} ${token}` : `attention ${layer}`;
    const { values } = await this.remember(key, () =>
      this.source.ask("attention", this.image, parameters));
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
    const found = await this.remember(single ? `rollout ${token}` : "rollout", () =>
      this.source.ask("rollout", this.image, single ? { token } : {}));
    const start = single ? 0 : token * grid[0] * grid[1];
    const values = found.values.subarray(start, start + grid[0] * grid[1]);
    return { values, grid, least: lowest(values) };
  }

  async mapOf(method, parameters) {
    const key = `${method} ${JSON.stringify(parameters)}`;
    const { shape, values } = await this.remember(key, () =>
      this.source.ask("map", this.image, { method, ...parameters }));
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
