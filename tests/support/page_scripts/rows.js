// The rows of the table with this label, each by the names of its columns.
const rows = document.querySelectorAll(`table[aria-label="${arguments[0]}"] tbody tr`)
return [...rows].map((row) =>
  Object.fromEntries([...row.cells].map((cell) => [cell.dataset.label, cell.innerText.trim()])),
)
