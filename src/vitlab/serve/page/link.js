// The state of the controls as the part of the address behind #, which never leaves the browser.

export const OPACITY = 60;

export function write(state, panels) {
  const fields = new URLSearchParams();
  const [first, second] = panels;
  if (first?.image?.sample != null) fields.set("image", first.image.sample);
  if (second?.image?.sample != null) fields.set("second", second.image.sample);
  fields.set("method", state.method);
  fields.set("layer", state.layer + 1);
  fields.set("head", state.head < 0 ? "mean" : state.head + 1);
  const query = state.held;
  if (query.kind === "patch") fields.set("patch", `${query.row + 1},${query.column + 1}`);
  if (query.kind === "prefix") fields.set("token", query.index + 1);
  if (state.target !== null) fields.set("class", state.target + 1);
  if (state.opacity !== OPACITY) fields.set("colours", state.opacity);
  panels.forEach((panel, number) => {
    if (panel.painted?.size) fields.set(number ? "painted2" : "painted", ranges(panel.painted));
  });
  fields.set("lang", state.language);
  return `#${fields}`;
}

// Fields that fit the model; others are left out, so that the default stays.
export function read(hash, model) {
  const fields = new URLSearchParams(hash.slice(1));
  const whole = (name, count) => {
    const value = Number(fields.get(name) ?? NaN);
    return Number.isInteger(value) && value >= 0 && value < count ? value : null;
  };
  const from1 = (name, count) => {
    const value = whole(name, count + 1);
    return value === null || value === 0 ? null : value - 1;
  };
  const cells = model.grid[0] * model.grid[1];
  const found = {
    image: whole("image", model.samples.length),
    second: whole("second", model.samples.length),
    layer: from1("layer", model.grids.length),
    head: fields.get("head") === "mean" ? -1 : from1("head", model.heads || 0),
    target: targetIn(model, from1("class", model.labels.length)),
    opacity: whole("colours", 101),
    method: model.methods[fields.get("method")] === null ? fields.get("method") : null,
    painted: [numbers(fields.get("painted"), cells), numbers(fields.get("painted2"), cells)],
    language: fields.get("lang"),
    held: null,
  };
  const [row, column] = (fields.get("patch") || "").split(",").map((text) => Number(text) - 1);
  if (row >= 0 && row < model.grid[0] && column >= 0 && column < model.grid[1]) {
    found.held = { kind: "patch", row, column };
  }
  const index = from1("token", model.prefix || 0);
  if (index !== null) found.held = { kind: "prefix", index };
  return found;
}

function targetIn(model, target) {
  return model.targets && !model.targets.includes(target) ? null : target;
}

function ranges(painted) {
  const sorted = [...painted].sort((a, b) => a - b);
  const parts = [];
  for (const number of sorted) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(".");
}

function numbers(text, count) {
  const found = [];
  for (const part of (text || "").split(".").filter(Boolean)) {
    const [from, to] = part.split("-").map(Number);
    for (let i = from; i <= (to ?? from) && i < count; i += 1) found.push(i);
  }
  return found.filter(Number.isInteger);
}
