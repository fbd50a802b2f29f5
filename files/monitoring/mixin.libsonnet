// The alerts, recording rules and dashboards as a mixin (https://monitoring.mixins.dev), for tools that install mixins.

// The files start with `---`, so parseYaml returns an array of documents.
local groups(files) = std.flattenArrays([std.parseYaml(file)[0].groups for file in files]);

{
  prometheusAlerts+:: {
    groups: groups([
      importstr 'alerts/balancer.yml',
      importstr 'alerts/cards.yml',
      importstr 'alerts/hosts.yml',
      importstr 'alerts/probe.yml',
      importstr 'alerts/slo.yml',
      importstr 'alerts/triton.yml',
    ]),
  },
  grafanaDashboards+:: {
    'npufleet-fleet.json': import 'dashboards/fleet.json',
    'npufleet-model.json': import 'dashboards/model.json',
    'npufleet-card.json': import 'dashboards/card.json',
    'npufleet-balancer.json': import 'dashboards/balancer.json',
  },
  prometheusRules+:: {
    groups: groups([
      importstr 'rules/balancer.yml',
      importstr 'rules/exporter.yml',
      importstr 'rules/hosts.yml',
      importstr 'rules/slo.yml',
    ]),
  },
}
