"""The plan's page: for each broker the curve, and the recommended set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.pages import Page

if TYPE_CHECKING:
    from pipeline.coverage import Coverage
    from pipeline.plan.outcome import Plan


def page(plans: list[Plan], coverage: Coverage) -> Page:
    """The whole page."""
    from plotly.graph_objects import Figure, Scatter

    made = Page(
        "Upstream plan",
        "How few topic filters cover what each broker's clients subscribe to, and what comes along unasked.",
    )
    coverage.show(made)
    figure = Figure()
    for plan in plans:
        counts, over = [step.filters for step in plan.steps], [step.over_bytes for step in plan.steps]
        figure.add_trace(Scatter(x=counts, y=over, mode="lines", line={"shape": "hv"}, name=plan.broker))
        chosen = plan.steps[plan.chosen]
        marker = {"size": 11, "symbol": "diamond"}
        figure.add_trace(
            Scatter(
                x=[chosen.filters], y=[chosen.over_bytes], mode="markers", marker=marker, name=f"{plan.broker}: plan"
            )
        )
    figure.update_xaxes(title="topic filters", type="log")
    figure.update_yaxes(title="over-forwarded bytes", rangemode="tozero")
    made.plot(
        figure,
        "Fewer filters to the left. What lies on the curve is what folding passed through; a diamond is the plan.",
    )
    for plan in plans:
        made.heading(plan.broker)
        made.figures(
            {
                "topic filters of clients": plan.subscribed,
                "upstream filters": len(plan.filters),
                "wanted bytes": plan.wanted_bytes,
                "over-forwarded bytes": plan.over_bytes,
                "over-forwarded messages": plan.over_messages,
                "over-forwarding": f"{plan.over:.1f} %",
            }
        )
        for note in plan.notes:
            made.paragraph(note, "note")
        made.table(["upstream filter"], [[each] for each in plan.filters], f"plan-{plan.broker}.toml")
    return made
