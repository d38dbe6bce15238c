/* Prediction sets: how often they hold the true class and how large they are, by score, size, class and group. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view, whole, percent, note } = C;

  const DRAWN = 10;
  const range = (low, high) => (low === high ? whole(low) : `${whole(low)}–${whole(high)}`);
  const covered = ({ value, low, high }) => `${percent(value, 1)} [${C.fixed(100 * low, 1)}, ${C.fixed(100 * high, 1)}]`;
  const sized = ({ value, low, high }) => `${C.fixed(value, 2)} [${C.fixed(low, 2)}, ${C.fixed(high, 2)}]`;

  /** Below what was asked, by more than its interval allows for; above is no fault. */
  const kindOf = ({ high }, asked) => (high < asked ? "worse" : "plain");
  const wordOf = ({ value, high }, asked) => (high < asked ? "too low" : percent(value, 1));

  const coverageRow = (name, found, asked) => ({
    name,
    ...found,
    kind: kindOf(found, asked),
    word: wordOf(found, asked),
    text: `${name}: coverage ${covered(found)}, asked ${percent(asked, 0)}.`,
  });

  const coverageGroup = (title, rows, asked) => ({ title, axis: "coverage, %", unit: "coverage, %", factor: 100, at: asked, rows });

  /** The first is the one that is kept. */
  function scoreGroups(several) {
    const sizes = several.map((one) => ({
      name: one.score.toUpperCase(),
      ...one.size,
      kind: "plain",
      word: `${percent(one.empty, 1)} empty`,
      text: `${one.score.toUpperCase()}: mean size ${sized(one.size)}, ${percent(one.empty, 1)} empty.`,
    }));
    const rows = several.map((one) => coverageRow(one.score.toUpperCase(), one.coverage, one.asked));
    const size = { title: "Mean size", axis: "classes in a set", unit: "classes", factor: 1, at: null, rows: sizes };
    return [coverageGroup("Coverage", rows, several[0].asked), size];
  }

  /** Above, how often sets of a size hold the true class; below, how many samples have such sets. */
  function drawSizes(svg, width, { by_size: found, asked, samples }) {
    const place = { width, left: 46, x: [0, found.length] };
    const above = new C.Plot(svg, { ...place, height: 180, above: 24, below: 8 }).title("Coverage, %");
    const y = [0, Math.max(...found.map((one) => one.samples)) / samples];
    const below = new C.Plot(svg, { ...place, top: 178, height: 132, above: 22, below: 40, y }).title("Share of the samples, %");
    above.axes({ yTicks: C.QUARTERS, yText: C.hundredth });
    below.axes({
      xTicks: found.map((_, k) => k + 0.5),
      xText: (tick) => range(found[tick - 0.5].low, found[tick - 0.5].high),
      yTicks: C.niceTicks(...y, 3),
      yText: (tick) => C.short(100 * tick),
      xLabel: "classes in the set",
    });
    above.segment([0, asked], [found.length, asked], "reference");
    found.forEach((one, k) => {
      below.bar([k, k + 1], [0, one.samples / samples], "fill-blue-soft", { gap: 4 });
      if (!one.high) return; // nothing is in an empty set
      const { value, low, high } = one.coverage,
        kind = kindOf(one.coverage, asked) === "worse" ? "orange" : "blue";
      above.segment([k + 0.5, low], [k + 0.5, high], kind).dot(k + 0.5, value, `dot-${kind}`, 4.5);
    });
    const items = found.map((one, k) => ({
      x: above.px(k + 0.5),
      text: `${range(one.low, one.high)} classes: ${whole(one.samples)} samples, coverage ${covered(one.coverage)}.`,
    }));
    const label = `Coverage by size of the set, asked ${percent(asked, 0)}. ${items.map((one) => one.text).join(" ")}`;
    return { height: 310, label, items, plot: { box: { top: above.box.top, bottom: below.box.bottom } } };
  }

  /** The least covered first; those that are not drawn are in the table. */
  function parts(name, found, asked) {
    const rows = found.sort(([, a], [, b]) => a.value - b.value).map(([key, each]) => coverageRow(key, each, asked));
    if (!rows.length) return [];
    const drawn = rows.slice(0, DRAWN),
      rest = rows.length > DRAWN ? `, the least covered ${DRAWN} of ${whole(rows.length)}` : ", the least covered first";
    const forest = C.forestChart(`sets-${name}`, [coverageGroup(`By ${name}${rest}`, drawn, asked)], `Coverage by ${name}.`);
    const table = C.numbersTable(`Show every ${name}`, [name, "coverage, %", "interval"], `sets-${name}`);
    table.write(
      rows.map((row) => [row.name, C.fixed(100 * row.value, 2), `[${C.fixed(100 * row.low, 2)}, ${C.fixed(100 * row.high, 2)}]`]),
    );
    return [forest.element, table.element];
  }

  function setsSection(sets) {
    const several = [sets, ...sets.others],
      names = view.subjects[0].class_names;
    const classes = Object.entries(sets.by_class).map(([k, found]) => [names ? names[Number(k)] : k, found]);
    const scores = C.forestChart("sets", scoreGroups(several), several.map((one) => one.words).join(". "));
    const sizes = C.chart({ name: "sets-size", hint: "", draw: (svg, width) => drawSizes(svg, width, sets) });
    const groups = parts("group", Object.entries(sets.by_group), sets.asked);
    return C.section(
      "sets",
      "Prediction sets",
      "How large must sets be to hold the true class?",
      h("p", { class: "sentence" }, sets.words[0].toUpperCase(), sets.words.slice(1), "."),
      scores.element,
      h(
        "div",
        { class: "pair" },
        h("div", {}, h("h3", {}, `Coverage by size (${sets.score.toUpperCase()})`), sizes.element),
        h("div", {}, groups, parts("class", classes, sets.asked)),
      ),
      note(
        `Dashed: the ${percent(sets.asked, 0)} that were asked, which is a promise for all samples together, not for each size, class or `,
        "group. Orange: the 95 % interval lies below it, as one in forty does by chance.",
      ),
    );
  }

  Object.assign(C, { setsSection });
})();
