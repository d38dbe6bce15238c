/* Tables: a plain one, one that sorts and filters, and one that unfolds. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, missing } = C;

  /** Heads of a plain table: words in the first columns, numbers in the others. */
  const headsOf = (texts, words = 1) =>
    texts.map((text, place) => h("th", { scope: "col", class: place < words ? null : "numeric" }, text));

  function plainTable({ name, label, heads, lines }) {
    const table = h("table", { class: "data", "data-table": name }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines));
    return C.scroller(table, { label });
  }

  /** A table that sorts by any column. Columns: {key, title, numeric, help} and, where it is not `row[key]`, value(row); what is
      shown of it is text(row) or cell(row). Rows without a value come last whichever way it is sorted. */
  function dataTable({ columns: given, rows, label, sort = null, name }) {
    const columns = given.map((column) => ({ value: (row) => row[column.key], ...column }));
    const lineOf = (row) => h("tr", {}, ...columns.map((column) => cellOf(column, row)));
    const entries = rows.map((row) => ({ row, line: lineOf(row) }));
    const held = { sort };

    function order(key, descending) {
      const column = columns.find((one) => one.key === key);
      const sorted = [...entries].sort((a, b) => compare(column.value(a.row), column.value(b.row), descending));
      held.sort = { key, descending };
      element.querySelector("tbody").append(...sorted.map((entry) => entry.line));
      for (const cell of heads) {
        const mine = cell.dataset.column === key;
        if (mine) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
    }

    function click({ key, numeric }) {
      const again = held.sort && held.sort.key === key;
      order(key, again ? !held.sort.descending : Boolean(numeric));
    }

    const heads = columns.map((column) => headOf(column, () => click(column)));
    const element = plainTable({ name, label, heads, lines: entries.map((entry) => entry.line) });
    if (sort) order(sort.key, sort.descending);
    return { element, entries, filter: (passes) => filter(entries, passes) };
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
    const content = (column.cell || column.text || column.value)(row);
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
  function numbersTable(summary, heads, name = null) {
    const table = plainTable({ name, label: summary, heads: headsOf(heads, 0), lines: [] });
    const line = (row) => h("tr", {}, row.map((text) => h("td", { class: "numeric" }, text)));
    const write = (rows) => table.querySelector("tbody").replaceChildren(...rows.map(line));
    return { element: h("details", { class: "numbers" }, h("summary", {}, summary), table), write };
  }

  Object.assign(C, { dataTable, headsOf, numbersTable, plainTable });
})();
