/* The table of classes. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, whole, fixed, missing, view, panel, absent, note } = C;

  /** A bar to the right for over-, to the left for under-confident, from one baseline; the largest gap of all fills it. */
  const gapCell = (largest) => (row) => {
    if (missing(row.gap)) return C.DASH;
    const bar = h("span", { class: `gap-bar ${row.gap > 0 ? "over" : "under"}`, "aria-hidden": "true" });
    bar.style.width = `${((50 * Math.abs(row.gap)) / largest).toFixed(1)}%`;
    return h("span", { class: "gap-cell" }, h("span", { class: "gap-track" }, bar), fixed(100 * row.gap, 1));
  };

  function classColumns(largest) {
    const share = (key, title, help) => ({
      key,
      title,
      help,
      numeric: true,
      value: (row) => row[key],
      text: (row) => (missing(row[key]) ? C.DASH : fixed(100 * row[key], 1)),
    });
    return [
      { key: "name", title: "Class", header: true, value: (row) => row.name, text: (row) => row.name },
      {
        key: "count",
        title: "Samples",
        numeric: true,
        help: "samples of this class",
        value: (row) => row.count,
        text: (row) => whole(row.count),
      },
      {
        key: "predicted",
        title: "Predicted",
        numeric: true,
        help: "samples predicted to be this class",
        value: (row) => row.predicted,
        text: (row) => whole(row.predicted),
      },
      share("recall", "Recall, %", "of this class's samples, those found"),
      share("precision", "Precision, %", "of those predicted to be this class, those correct"),
      share("said", "Confidence, %", "mean confidence where this class is predicted"),
      {
        key: "gap",
        title: "Gap",
        numeric: true,
        help: "confidence minus precision, in points: positive is over-confident",
        value: (row) => row.gap,
        cell: gapCell(largest),
      },
      {
        key: "ece",
        title: "ECE, %",
        numeric: true,
        help: "calibration error of this class's probability",
        value: (row) => row.ece,
        text: (row) => (missing(row.ece) ? C.DASH : fixed(100 * row.ece, 2)),
      },
    ];
  }

  function classesPanel(subject) {
    const rows = subject.per_class;
    if (!rows || !rows.length) return absent("classes", "Class by class");
    // Side by side there is no room for both counts.
    const gaps = view.subjects.flatMap((one) => one.per_class || []).map((row) => Math.abs(row.gap || 0));
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
