/* Tables: one that sorts and filters, and a plain one that unfolds. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, missing } = C;

  /** A table that sorts by any column. Columns: {key, title, text(row) | cell(row), value(row), numeric, help}.
      Rows without a value come last whichever way it is sorted. */
  function dataTable({ columns, rows, label, sort = null, name = null }) {
    const lineOf = (row) => h("tr", {}, ...columns.map((column) => cellOf(column, row)));
    const entries = rows.map((row) => ({ row, line: lineOf(row) }));
    const body = h("tbody", {}, ...entries.map((entry) => entry.line));
    const held = { sort };

    function order(key, descending) {
      const column = columns.find((one) => one.key === key);
      const sorted = [...entries].sort((a, b) => compare(column.value(a.row), column.value(b.row), descending));
      held.sort = { key, descending };
      body.append(...sorted.map((entry) => entry.line));
      for (const cell of head.children) {
        const mine = cell.dataset.column === key;
        if (mine) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
    }

    function click({ key, numeric }) {
      const again = held.sort && held.sort.key === key;
      order(key, again ? !held.sort.descending : Boolean(numeric));
    }

    const head = h("tr", {}, ...columns.map((column) => headOf(column, () => click(column))));
    if (sort) order(sort.key, sort.descending);
    const caption = h("caption", { class: "visually-hidden" }, label);
    const table = h("table", { class: "data", "data-table": name }, caption, h("thead", {}, head), body);
    const element = C.scroller(table, { label });
    return { element, table, entries, order, filter: (passes) => filter(entries, passes) };
  }

  /** Show the rows that pass; returns how many do. */
  function filter(entries, passes) {
    let found = 0;
    for (const { row, line } of entries) {
      line.hidden = !passes(row);
      found += line.hidden ? 0 : 1;
    }
    return found;
  }

  function headOf(column, click) {
    const arrow = h("span", { class: "arrow", "aria-hidden": "true" });
    const button = h("button", { type: "button", class: "sorter", title: column.help, click }, column.title, arrow);
    return h("th", { scope: "col", "data-column": column.key, class: column.numeric ? "numeric" : null }, button);
  }

  function cellOf(column, row) {
    const content = column.cell ? column.cell(row) : column.text(row);
    const attributes = { class: column.numeric ? "numeric" : null, "data-column": column.key };
    return column.header ? h("th", { ...attributes, scope: "row" }, content) : h("td", attributes, content);
  }

  function compare(a, b, descending) {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const sign =
      typeof a === "number" && typeof b === "number"
        ? a - b
        : String(a).localeCompare(String(b), "en", { numeric: true });
    return descending ? -sign : sign;
  }

  /** A plain table of texts under a summary that opens it. */
  function numbersTable(summary, heads) {
    const body = h("tbody");
    const head = h(
      "tr",
      {},
      heads.map((text) => h("th", { scope: "col", class: "numeric" }, text)),
    );
    const table = C.scroller(h("table", { class: "data" }, h("thead", {}, head), body), { label: summary });
    const write = (rows) =>
      body.replaceChildren(
        ...rows.map((row) =>
          h(
            "tr",
            {},
            row.map((text) => h("td", { class: "numeric" }, text)),
          ),
        ),
      );
    return { element: h("details", { class: "numbers" }, h("summary", {}, summary), table), write };
  }

  Object.assign(C, { dataTable, numbersTable });
})();
