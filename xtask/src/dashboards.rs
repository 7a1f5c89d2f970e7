//! `deploy/grafana/*.json`: dashboards for Grafana, from `deploy/grafana/dashboards.toml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// Panels per row of the grid, which has 24 columns.
const PER_ROW: usize = 2;
const WIDTH: usize = 24 / PER_ROW;
const HEIGHT: usize = 8;

#[derive(Deserialize)]
struct Source {
    dashboard: Vec<Dashboard>,
}

#[derive(Deserialize)]
struct Dashboard {
    uid: String,
    title: String,
    panel: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    title: String,
    description: String,
    kind: String,
    unit: String,
    queries: Vec<Query>,
    /// For the test that executes the queries.
    #[serde(default, rename = "allowed_empty")]
    _allowed_empty: bool,
}

#[derive(Deserialize)]
struct Query {
    expr: String,
    legend: String,
}

/// Generated files and their content.
pub fn files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let folder = root.join("deploy/grafana");
    let path = folder.join("dashboards.toml");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let source: Source =
        toml::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    let mut files = BTreeMap::new();
    for dashboard in source.dashboard {
        let text = serde_json::to_string_pretty(&of(&dashboard))?;
        files.insert(
            folder.join(format!("{}.json", dashboard.uid)),
            format!("{text}\n"),
        );
    }
    Ok(files)
}

fn of(dashboard: &Dashboard) -> Value {
    let panels = dashboard.panel.iter().enumerate();
    let panels: Vec<Value> = panels
        .map(|(place, panel)| of_panel(place, panel))
        .collect();
    json!({
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["slurm-mesh"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "1m",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
            {
                "name": "cluster",
                "label": "Cluster",
                "type": "query",
                "datasource": source(),
                "query": "label_values(mesh_source_up, cluster)",
                "refresh": 2,
                "includeAll": true,
                "allValue": ".*",
                "multi": true,
            },
        ] },
        "panels": panels,
    })
}

fn of_panel(place: usize, panel: &Panel) -> Value {
    let is_table = panel.kind == "table";
    let targets: Vec<Value> = panel
        .queries
        .iter()
        .zip('A'..)
        .map(|(query, name)| {
            json!({
                "refId": name.to_string(),
                "datasource": source(),
                "expr": query.expr,
                "legendFormat": query.legend,
                "instant": is_table,
                "format": if is_table { "table" } else { "time_series" },
            })
        })
        .collect();
    json!({
        "id": place + 1,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": source(),
        "fieldConfig": { "defaults": { "unit": panel.unit }, "overrides": [] },
        "gridPos": {
            "x": (place % PER_ROW) * WIDTH,
            "y": (place / PER_ROW) * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "targets": targets,
    })
}

/// The data source that the viewer chooses.
fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}
