/* The table of every metric. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view, panel, note, titleLink } = C;

  function direction(metric) {
    const words = metric.better === "high" ? "higher is better" : "lower is better";
    return h(
      "span",
      { class: "direction", title: words },
      h("span", { "aria-hidden": "true" }, metric.better === "high" ? "↑" : "↓"),
      h("span", { class: "visually-hidden" }, words),
    );
  }

  function metricsPanel(subject) {
    const lines = subject.metrics.map((metric) =>
      h(
        "tr",
        { "data-metric": metric.name },
        h("th", { scope: "row" }, titleLink(metric), " ", direction(metric)),
        h("td", { class: "numeric" }, C.metricText(metric, metric.value)),
        h("td", { class: "numeric dim" }, C.intervalText(metric, metric.low, metric.high)),
      ),
    );
    const label = "Every number, at T = 1",
      heads = C.headsOf(["Metric", "Value", `${view.levelText} interval`]);
    const table = C.plainTable({ name: "metrics", label, heads, lines });
    return { element: panel("metrics", label, table, note("↑ higher is better, ↓ lower is better.")) };
  }

  Object.assign(C, { metricsPanel });
})();
