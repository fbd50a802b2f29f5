'use strict';
(() => {
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const byId = (id) => document.getElementById(id);
  const table = document.querySelector('main table');
  const hosts = all(':scope > tbody', table);
  const heads = all(':scope > thead th', table);
  const order = new Intl.Collator('en', {numeric: true});

  // The text of each host that the field "Find" searches. It leaves out right answers.
  const searched = new Map(hosts.map((host) => [
    host,
    all('.summary, section:not(.answers), .answers .wrong', host).map((part) => part.textContent).join(' ')
      .replace(/\s+/g, ' ').toLowerCase(),
  ]));

  const filter = () => {
    const words = byId('find').value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const host of hosts) {
      const text = searched.get(host);
      const fits = words.every((word) => text.includes(word)) && !(byId('only').checked && host.classList.contains('good'));
      host.hidden = !fits;
      shown += fits;
    }
    byId('shown').textContent = `${shown} of ${hosts.length} hosts`;
    byId('none').hidden = shown > 0;
  };

  const sort = (head) => {
    const position = heads.indexOf(head);
    const down = head.getAttribute('aria-sort') === 'ascending';
    for (const other of heads) other.setAttribute('aria-sort', 'none');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const key = new Map(hosts.map((host) => [host, host.rows[0].cells[position].dataset.key]));
    hosts.sort((a, b) => {
      const [left, right] = [key.get(a), key.get(b)];
      // Hosts without a value come last in both directions.
      if (!left || !right) return !left - !right;
      return order.compare(left, right) * (down ? -1 : 1);
    });
    table.append(...hosts);
  };

  const open = (host, opened) => {
    host.classList.toggle('open', opened);
    host.querySelector('.host button').setAttribute('aria-expanded', String(opened));
    // The page contains each picture once. The other images with this picture copy its source when their host is opened.
    if (opened) for (const image of all('img[data-picture]:not([src])', host)) image.src = byId(`picture-${image.dataset.picture}`).src;
  };

  byId('find').addEventListener('input', filter);
  byId('only').addEventListener('change', filter);
  document.querySelector('.tools').addEventListener('submit', (event) => event.preventDefault());
  for (const head of heads) head.firstElementChild.addEventListener('click', () => sort(head));
  table.addEventListener('click', (event) => {
    const summary = event.target.closest('.summary');
    if (summary && !String(getSelection())) open(summary.parentNode, !summary.parentNode.classList.contains('open'));
  });

  const target = () => {
    const host = location.hash && byId(location.hash.slice(1));
    if (host && host.matches('tbody')) open(host, true);
  };
  addEventListener('hashchange', target);
  target();
  addEventListener('beforeprint', () => hosts.forEach((host) => open(host, true)));

  const ago = (hours) => hours < 1 ? `${Math.round(hours * 60)} min ago` : hours < 48 ? `${Math.round(hours)} h ago` : `${Math.round(hours / 24)} d ago`;
  const hours = (time) => (Date.now() - Date.parse(time.dateTime)) / 36e5;
  for (const time of all('time')) {
    time.title = time.textContent;
    if (time.closest('.seen')) time.textContent = ago(Math.max(hours(time), 0));
  }
  byId('old').hidden = hours(document.querySelector('.made time')) < Number(byId('old').dataset.hours);
  filter();
})();
