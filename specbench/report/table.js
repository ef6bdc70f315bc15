"use strict";
// Tables that sort by their headings (within each body), show the rows that their selects choose, and save as CSV.

function sortTable(heading) {
  const row = heading.parentNode, at = [...row.cells].indexOf(heading);
  const numbers = heading.firstElementChild.dataset.kind === "number";
  const before = heading.getAttribute("aria-sort");
  const down = before === "none" ? numbers : before === "ascending";
  for (const cell of row.cells) cell.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (line) => (numbers ? line.cells[at].dataset.value : line.cells[at].textContent.trim());
  const order = (a, b) => {
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");
    return (numbers ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
  };
  for (const body of heading.closest("table").tBodies) {
    body.append(...[...body.rows].filter((line) => !line.dataset.heads).sort(order));
  }
}

// A text that a spreadsheet would take for a formula gets a ' in front.
function csvCell(text) {
  const safe = /^[=+\-@\t\r＝＋－＠]./.test(text) ? "'" + text : text;
  return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

// Of a column of figures all that it is made from, such as the bounds of an interval: names and values, which are
// numbers or - for one that is not known.
function csvOf(table) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.firstElementChild);
  const names = heads.flatMap((head) => head.dataset.names?.split(" ") ?? [head.textContent.trim()]);
  const line = (row) => [...row.cells].flatMap((cell) =>
    cell.dataset.figures?.split(" ").map((value) => (value === "-" ? "" : value)) ?? [csvCell(cell.textContent.trim())]);
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => !row.dataset.heads && !row.hidden);
  return [names.map(csvCell), ...rows.map(line)].map((cells) => cells.join(",") + "\r\n").join("");
}

for (const table of document.querySelectorAll("table.sorts")) {
  for (const heading of table.tHead.rows[0].cells) {
    heading.firstElementChild?.addEventListener("click", () => sortTable(heading));
  }
  const selects = document.querySelectorAll(`select[data-of="${table.id}"]`);
  const choose = () => {
    for (const line of [...table.tBodies].flatMap((body) => [...body.rows])) {
      const left = (one) => one.value !== "" && line.dataset[one.dataset.by] !== one.value;
      line.hidden = !line.dataset.heads && [...selects].some(left);
    }
  };
  for (const one of selects) one.addEventListener("change", choose);
  for (const button of document.querySelectorAll(`button[data-csv="${table.id}"]`)) {
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
      link.download = table.id + ".csv";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
}
