/* The table of classes. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, whole, fixed, missing, view, panel, note } = C;

  /** A bar to the right for over-, to the left for under-confident, from one baseline; the largest gap of all fills it. */
  const gapCell = (largest) => (row) => {
    if (missing(row.gap)) return C.DASH;
    const bar = h("span", { class: `gap-bar ${row.gap > 0 ? "over" : "under"}`, "aria-hidden": "true" });
    bar.style.width = `${((50 * Math.abs(row.gap)) / largest).toFixed(1)}%`;
    return h("span", { class: "gap-cell" }, h("span", { class: "gap-track" }, bar), fixed(100 * row.gap, 1));
  };

  function classColumns(largest) {
    const count = (key, title, help) => ({ key, title, help, numeric: true, text: (row) => whole(row[key]) });
    const share = (key, title, help, places = 1) => ({
      key,
      title,
      help,
      numeric: true,
      text: (row) => (missing(row[key]) ? C.DASH : fixed(100 * row[key], places)),
    });
    const points = "confidence minus precision, in points: positive is over-confident";
    return [
      { key: "name", title: "Class", header: true },
      count("count", "Samples", "samples of this class"),
      count("predicted", "Predicted", "samples predicted to be this class"),
      share("recall", "Recall, %", "of this class's samples, those found"),
      share("precision", "Precision, %", "of those predicted to be this class, those correct"),
      share("said", "Confidence, %", "mean confidence where this class is predicted"),
      { key: "gap", title: "Gap", numeric: true, help: points, cell: gapCell(largest) },
      share("ece", "ECE, %", "calibration error of this class's probability", 2),
    ];
  }

  function classesPanel(subject) {
    const rows = subject.per_class;
    // Side by side there is no room for both counts.
    const gaps = view.subjects.flatMap((one) => one.per_class).map((row) => Math.abs(row.gap || 0));
    const columns = classColumns(Math.max(...gaps) || 1).filter((column) => !(view.several && column.key === "predicted"));
    const table = C.dataTable({ columns, rows, label: "Class by class", name: "classes" });
    const found = h("span", { class: "dim", role: "status" });
    const input = h("input", {
      type: "search",
      placeholder: "Filter the classes",
      "aria-label": "Filter the classes",
      "data-control": "class-filter",
      input: () => narrow(),
    });
    function narrow() {
      const wanted = input.value.trim().toLowerCase();
      const count = table.filter((row) => String(row.name).toLowerCase().includes(wanted));
      found.textContent = wanted ? `${whole(count)} of ${whole(rows.length)} classes` : `${whole(rows.length)} classes`;
    }
    narrow();
    const more = rows.length > 60 ? note("On paper, the first 60 in the order chosen on the screen.") : null;
    if (more) more.classList.add("print-only");
    const element = panel(
      "classes",
      "Class by class",
      h("div", { class: "toolbar no-print" }, input, found),
      table.element,
      more,
    );
    return { element };
  }

  Object.assign(C, { classesPanel });
})();
