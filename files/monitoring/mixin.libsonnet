// The alerts in the layout of a mixin (https://monitoring.mixins.dev), for tools that install mixins.

// The files start with `---`, so parseYaml returns an array of documents.
local groups(files) = std.flattenArrays([std.parseYaml(file)[0].groups for file in files]);

{
  prometheusAlerts+:: {
    groups: groups([
      importstr 'alerts/probe.yml',
      importstr 'alerts/triton.yml',
    ]),
  },
}
