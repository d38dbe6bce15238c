/* Groups of samples: every main metric of each, worst first, beside random groups of the same size. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, whole, missing, panel, absent, note } = C;

  const DRAWN = 15,
    NAMED = 5;
  const KINDS = { better: "better", worse: "worse", "": "noise" };

  function mainOf(subject) {
    const named = subject.cards.length ? subject.cards : subject.metrics.slice(0, 4).map((metric) => metric.name);
    return subject.metrics.filter((metric) => named.includes(metric.name));
  }

  const wordOf = ({ mark, p_value: p }) => (missing(p) ? "" : mark || "within chance");

  function sentence(metric, { group, samples, metrics }) {
    const { value, low, high, expected, p_value: p } = metrics[metric.name];
    const interval = C.intervalText(metric, low, high),
      number = C.metricText(metric, value);
    const chance = missing(p) ? "" : `; random groups of this size: ${C.metricText(metric, expected)}, p = ${C.chanceText(p)}`;
    return `${group} (${whole(samples)} samples): ${metric.title} ${number} ${interval}${chance}.`;
  }

  /** Which groups are worse than chance makes a group of their size, and in what. */
  function verdict({ groups }, metrics) {
    if (missing(groups[0].metrics[metrics[0].name].p_value)) return "Without resamples, no group can be told from chance.";
    const worse = groups.flatMap((one) => {
      const titles = metrics.filter(({ name }) => one.metrics[name].mark === "worse").map(({ title }) => title);
      return titles.length ? [`${one.group} (${titles.join(", ")})`] : [];
    });
    if (!worse.length) return "No group is worse than random groups of its size by more than chance.";
    const more = worse.length > NAMED ? `; and ${worse.length - NAMED} more` : "";
    return `Worse than random groups of their size, by more than chance: ${worse.slice(0, NAMED).join("; ")}${more}.`;
  }

  const forestGroup = (groups) => (metric) => ({
    title: metric.title,
    axis: `${metric.title}, ${metric.unit}`,
    unit: metric.unit,
    factor: metric.factor,
    at: metric.value,
    rows: groups.map((one) => {
      const found = one.metrics[metric.name];
      return { name: one.group, ...found, kind: KINDS[found.mark], word: wordOf(found), text: sentence(metric, one) };
    }),
  });

  function columnsOf(metric) {
    const { name, title, unit } = metric;
    const of = (row) => row.metrics[name];
    const gap = (row) => (missing(of(row).expected) || missing(of(row).value) ? null : of(row).value - of(row).expected);
    return [
      {
        key: name,
        title: `${title}, ${unit}`,
        numeric: true,
        value: (row) => of(row).value,
        cell: (row) => [
          C.metricNumber(metric, of(row).value),
          h("span", { class: "range dim" }, ` ${C.intervalText(metric, of(row).low, of(row).high)}`),
        ],
      },
      {
        key: `${name}-from`,
        title: `from chance, ${C.unitOf(metric)}`,
        help: `${title} minus its mean over random groups of the same size`,
        numeric: true,
        value: gap,
        text: (row) => C.metricNumber(metric, gap(row), { signed: true }),
      },
      { key: `${name}-p`, title: "p", numeric: true, value: (row) => of(row).p_value, text: (row) => C.chanceText(of(row).p_value) },
    ];
  }

  function groupTable(subject, metrics) {
    const columns = [
      { key: "group", title: "Group", header: true },
      { key: "samples", title: "Samples", numeric: true, text: (row) => whole(row.samples) },
      ...metrics.flatMap(columnsOf),
    ];
    const { element } = C.dataTable({ columns, rows: subject.groups, label: "Every group", name: "groups" });
    return h("details", { class: "numbers" }, h("summary", {}, "Show every number of the groups"), element);
  }

  function groupsPanel(subject) {
    const title = "Which groups differ?";
    if (!subject.groups.length) return absent("groups", title);
    const metrics = mainOf(subject),
      drawn = subject.groups.slice(0, DRAWN),
      left = subject.groups.length - drawn.length;
    const label = `${whole(subject.groups.length)} groups, worst first. ${verdict(subject, metrics)}`;
    const forest = C.forestChart("groups", metrics.map(forestGroup(drawn)), label);
    const rest = left ? ` The ${whole(left)} others are in the table.` : "";
    const element = panel(
      "groups",
      title,
      h("p", { class: "sentence" }, verdict(subject, metrics)),
      C.legend([
        ["key-dot", "group, with its interval"],
        ["key-reference", "all samples"],
        ["key-expected", "random groups of this size"],
      ]),
      forest.element,
      note(`Worst first, at T = 1. p-values are corrected for ${whole(subject.groups.length)} groups (Holm).${rest}`),
      groupTable(subject, metrics),
    );
    return { element };
  }

  Object.assign(C, { groupsPanel });
})();
