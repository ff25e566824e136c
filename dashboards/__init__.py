"""How the Grafana boards are made: tables of panels, and what makes JSON of them. What ships is in `aie_dashboards`."""
