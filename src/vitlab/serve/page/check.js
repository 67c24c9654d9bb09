// A test of the map: the brightest patches are painted away, and as many at random.

import { ranked } from "./lists.js";
import { $, guarded, model, state } from "./page.js";
import { percent, word } from "./words.js";

const CHECKED = 0.2; // share of the patches that a test of a map paints away
const RANDOM = 5; // random choices that it is compared with

export async function check(panel) {
  $("checked").textContent = word("checking");
  await guarded(async () => {
    const { values, grid } = panel.map;
    const cells = model.grid[0] * model.grid[1];
    const at = (i) => {
      const row = Math.floor((Math.floor(i / model.grid[1]) * grid[0]) / model.grid[0]);
      return row * grid[1] + Math.floor(((i % model.grid[1]) * grid[1]) / model.grid[1]);
    };
    const order = [...Array(cells).keys()].sort((a, b) => values[at(b)] - values[at(a)]);
    const count = Math.max(1, Math.round(CHECKED * cells));
    const whole = (await panel.probabilities([])).values;
    const target = state.target ?? (model.task === "regression" ? 0 : ranked(whole)[0]);
    const kept = [...panel.painted];
    let random = 0;
    for (let i = 0; i < RANDOM; i += 1) {
      const mixed = order.map((cell) => [Math.random(), cell]).sort((a, b) => a[0] - b[0]);
      const chosen = mixed.slice(0, count).map(([, cell]) => cell);
      random += (await panel.probabilities(chosen)).values[target] / RANDOM;
    }
    const after = (await panel.probabilities(order.slice(0, count))).values[target];
    await panel.restore(kept);
    const number = model.task === "regression" ? (value) => value.toPrecision(4) : percent;
    $("checked").textContent = word(model.task === "regression" ? "checkedValue" : "checked", {
      label: model.labels[target], before: number(whole[target]), after: number(after),
      random: number(random), count: RANDOM,
    });
  });
}
