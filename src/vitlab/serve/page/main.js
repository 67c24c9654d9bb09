// The page: its controls, and what they change.

import { listenToCamera } from "./camera.js";
import { check, forgetCheck } from "./check.js";
import * as link from "./link.js";
import { Heads, element } from "./lists.js";
import {
  $, READ, announce, change, changed, guarded, hasLayers, hideError, isOfClass, model, panels,
  setModel, source, state, whenChanged,
} from "./page.js";
import { tokenIn } from "./panel.js";
import { Shown } from "./shown.js";
import { openSource } from "./source.js";
import { listenToTour, nameTour, showTourSlider } from "./tour.js";
import { language, setLanguage, word } from "./words.js";

const WRITTEN = 400; // milliseconds between changes of the address: browsers limit them

let heads;

// Start.

async function start() {
  setLanguage(state.language);
  $("title").textContent = word("opening");
  const where = await openSource();
  setModel(where, await where.model());
  model.prefix = Number(model.class_token || 0) + (model.registers || 0);
  const wanted = link.read(location.hash, model);
  state.method = wanted.method ?? Object.keys(model.methods).find((m) => !model.methods[m]) ?? null;
  state.layer = wanted.layer ?? lastFine();
  state.head = wanted.head ?? -1;
  state.held = wanted.held ?? READ;
  state.target = wanted.target;
  state.opacity = wanted.opacity ?? state.opacity;
  if (hasLayers()) heads = new Heads($("heads"), model, chooseHead);
  buildControls();
  speak(wanted.language ?? state.language);
  addPanel().other.before($("paint-part"));
  if (wanted.second !== null) addPanel();
  const painted = source.accepts ? wanted.painted : [];
  await openSample(wanted.image ?? 0, 0, painted[0]);
  if (wanted.second !== null) await openSample(wanted.second, 1, painted[1]);
  state.filling = 0;
  document.body.dataset.ready = "true";
}

// The last layer that has all patches.
function lastFine() {
  const fine = model.grids.filter(([rows, columns]) =>
    rows === model.grid[0] && columns === model.grid[1]);
  return Math.max(fine.length - 1, 0);
}

function speak(name) {
  setLanguage(name);
  state.language = language();
  $("language").textContent = state.language === "zh" ? "English" : "中文";
  $("language").lang = state.language === "zh" ? "en" : "zh";
  const [, height, width] = model.input;
  const [rows, columns] = model.grid;
  $("title").textContent = model.name;
  document.title = `${model.name} · vitlab explore`;
  $("facts").textContent = word(model.kind === "vit" ? "facts" : "factsPlain", {
    layers: model.grids.length, heads: model.heads, rows, columns, height, width,
    classes: model.labels.length, engine: model.engine,
  });
  $("keys").replaceChildren(...word("keyList").split("|").map((text) => element("li", "", text)));
  $("target").options[0].textContent = word("likeliest");
  for (const [number, button] of [...$("samples").children].entries()) {
    button.setAttribute("aria-label", word("sample", { name: model.samples[number] }));
  }
  for (const button of $("methods").children) button.textContent = word(button.dataset.method);
  showReasons();
  $("own-reason").textContent = word("static");
  $("footer").textContent = word(source.accepts ? "footer" : "footerStatic");
  nameTour();
  for (const panel of panels) panel.name();
  changed();
}

// Why methods are missing: one sentence for the model, or the library's for each method.
function showReasons() {
  const missing = Object.entries(model.methods).filter(([, reason]) => reason);
  const reasons = model.kind === "vit"
    ? missing.map(([method, reason]) => word("missing", { method: word(method), reason }))
    : [word(model.kind)];
  $("reason").hidden = !reasons.length;
  $("reason").replaceChildren(...reasons.map((text) => element("p", "", text)));
}

// Classes that maps can be asked for.
function targets() {
  return model.targets ?? [...model.labels.keys()];
}

function buildControls() {
  for (const [number, name] of model.samples.entries()) {
    const button = element("button", "sample");
    button.type = "button";
    button.title = name;
    const image = element("img");
    image.src = source.sampleAddress(number);
    image.alt = "";
    button.append(image);
    button.addEventListener("click", () => openSample(number, state.filling));
    $("samples").append(button);
  }
  for (const method of Object.keys(model.methods).filter((name) => !model.methods[name])) {
    const button = element("button");
    button.type = "button";
    button.dataset.method = method;
    button.addEventListener("click", () => change({ method }));
    $("methods").append(button);
  }
  $("target").append(element("option"));
  for (const number of targets()) $("target").append(element("option", "", model.labels[number]));
  $("layer").max = Math.max(model.grids.length - 1, 0);
  $("head").max = (model.heads || 1) - 1;
  $("layers-part").hidden = $("tour").hidden = $("intro").hidden = !hasLayers();
  for (const id of ["own", "about-own", "paint-part"]) $(id).hidden = !source.accepts;
  $("own-reason").hidden = source.accepts;
  $("map-title").parentElement.classList.toggle("empty", state.method === null);
  $("check").hidden = $("about-check").hidden = state.method === null;
  listen();
}

function listen() {
  $("layer").addEventListener("input", () => change({ layer: Number($("layer").value) }));
  $("head").addEventListener("input", () => change({ head: Number($("head").value) }));
  $("opacity").addEventListener("input", () => change({ opacity: Number($("opacity").value) }));
  $("target").addEventListener("change", () => {
    change({ target: targets()[$("target").selectedIndex - 1] ?? null });
  });
  $("language").addEventListener("click", () => speak(state.language === "zh" ? "en" : "zh"));
  $("link").addEventListener("click", copyLink);
  $("file").addEventListener("click", () => $("upload").click());
  $("upload").addEventListener("change", () => {
    if ($("upload").files[0]) openFile($("upload").files[0]);
    $("upload").value = "";
  });
  $("paint").addEventListener("click", () => change({ painting: !state.painting }));
  $("clear").addEventListener("click", () => panels.forEach((panel) => panel.paint([], false)));
  $("check").addEventListener("click", () => check(panels[state.filling]));
  listenToCamera(openFile);
  listenToTour();
  document.addEventListener("keydown", pressed);
  document.addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files][0];
    if (file && source.accepts) openFile(file);
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.toggle("dragging", source.accepts);
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const file = event.dataTransfer.files[0];
    if (file && source.accepts) openFile(file);
  });
  window.addEventListener("hashchange", () => {
    if (location.hash !== link.write(state, panels)) location.reload();
  });
}

// Images.

function openSample(number, place, painted) {
  const image = { name: model.samples[number], sample: number };
  return openImage(place, image, (signal) => source.samplePixels(number, signal), painted);
}

function openFile(file) {
  const image = { name: file.name || "", sample: null };
  return openImage(state.filling, image, async (signal) => {
    try {
      return await source.pixels(file, signal);
    } catch (error) {
      throw error.status === 415 ? new Error(word("notImage", { name: image.name })) : error;
    }
  });
}

async function openImage(place, image, read, painted) {
  hideError();
  await guarded(() => panels[place].show(image, read, painted), "image");
}

function addPanel() {
  const panel = new Shown(panels.length, compare);
  panels.push(panel);
  $("panels").append(panel.place);
  arrange();
  return panel;
}

function arrange() {
  for (const place of [$("panels"), $("panels").parentElement]) {
    place.classList.toggle("two", panels.length > 1);
  }
}

function compare() {
  if (panels.length > 1) {
    panels.pop().remove();
    state.filling = 0;
    arrange();
    for (const panel of panels) panel.name();
    changed();
    return;
  }
  addPanel();
  state.filling = 1;
  for (const panel of panels) panel.name();
  const other = (panels[0].image?.sample ?? -1) + 1;
  openSample(other % model.samples.length, 1);
}

// Changes.

function chooseHead(layer, head) {
  change({ layer, head });
  announce();
}

async function render(view) {
  drawing += 1;
  for (const panel of panels) panel.settle();
  forgetCheck(view);
  showControls();
  writeLink();
  const shown = panels.filter((panel) => panel.image);
  await Promise.all(shown.map((panel) => panel.render(view)));
  if (heads && view.method === "attention" && panels[0].image) {
    guarded(() => drawHeads(view), "heads");
  }
}

// Keep the address that of the state; browsers allow few changes of it in a time.
let written = 0;
function writeLink() {
  if (written) return;
  written = setTimeout(() => {
    written = 0;
    const wanted = link.write(state, panels);
    if (document.body.dataset.ready && location.hash !== wanted) {
      history.replaceState(null, "", wanted);
    }
  }, WRITTEN);
}

function showControls() {
  for (const button of $("methods").children) {
    button.setAttribute("aria-pressed", String(button.dataset.method === state.method));
  }
  const name = state.method && state.method[0].toUpperCase() + state.method.slice(1);
  $("explained").textContent = name ? word(`about${name}`) : "";
  $("place").hidden = state.method !== "attention";
  $("heads-part").hidden = state.method !== "attention";
  $("of-class").hidden = !isOfClass(state);
  $("layer").value = state.layer;
  $("head").value = state.head;
  $("opacity").value = state.opacity;
  $("target").selectedIndex = targets().indexOf(state.target) + 1;
  const count = model.grids.length;
  $("layer-name").textContent = word("layer", { number: state.layer + 1, count });
  const values = { number: state.head + 1, count: model.heads };
  $("head-name").textContent = word(state.head < 0 ? "headMean" : "head", values);
  $("layer").setAttribute("aria-valuetext", $("layer-name").textContent);
  $("head").setAttribute("aria-valuetext", $("head-name").textContent);
  showTourSlider();
  $("paint").setAttribute("aria-pressed", String(state.painting));
  heads?.mark(state.layer, state.head);
  document.body.classList.toggle("painting", state.painting);
}

let drawing = 0;
async function drawHeads(view) {
  const own = drawing;
  const order = model.grids.map((_, layer) => layer);
  order.sort((a, b) => Math.abs(a - view.layer) - Math.abs(b - view.layer));
  for (const layer of order) {
    const rows = await panels[0].rows(layer, tokenIn(model, layer, view.query));
    if (own !== drawing) return;
    heads.draw(layer, rows);
  }
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const last = model ? model.grids.length - 1 : 0;
  const steps = {
    "[": () => ({ layer: Math.max(state.layer - 1, 0) }),
    "]": () => ({ layer: Math.min(state.layer + 1, last) }),
    ",": () => ({ head: Math.max(state.head - 1, -1) }),
    ".": () => ({ head: Math.min(state.head + 1, (model.heads || 0) - 1) }),
    Escape: () => ({ held: READ, hovered: null, painting: false }),
  };
  if (!steps[event.key]) return;
  change(steps[event.key]());
  announce();
}

// Copy the address; where the browser does not allow it, show it selected.
async function copyLink() {
  const address = new URL(link.write(state, panels), location.href).href;
  const own = panels.every((panel) => panel.image?.sample != null) ? "" : "Own";
  $("link-note").hidden = false;
  try {
    await navigator.clipboard.writeText(address); // undefined without HTTPS
    $("copied").textContent = word(`copied${own}`);
    $("address").hidden = true;
  } catch {
    $("copied").textContent = word(`copyYourself${own}`);
    $("address").value = address;
    $("address").hidden = false;
    $("address").select();
  }
}

whenChanged(render);
guarded(start, "start");
