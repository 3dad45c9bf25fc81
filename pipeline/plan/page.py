"""The plan's page: for each broker the curve, and the recommended set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_pages import COLOURS, POWERS, Page, Plot, line

if TYPE_CHECKING:
    from pipeline.plan.outcome import Plan
    from pipeline.record.coverage import Coverage


def page(plans: list[Plan], coverage: Coverage) -> Page:
    """The whole page."""
    made = Page(
        "Upstream plan",
        "How few topic filters cover what each broker's clients subscribe to, and what comes along unasked.",
    )
    coverage.show(made)
    about = "Fewer filters to the left. What lies on the curve is what folding passed through; a point is the plan."
    figure = Plot("curve", "Filters and what comes along", about)
    for number, plan in enumerate(plans):
        colour = COLOURS[number % len(COLOURS)]
        counts, over = [step.filters for step in plan.steps], [step.over_bytes for step in plan.steps]
        figure.traces.append(line(plan.broker, counts, over, colour, line={"shape": "hv"}))
        chosen = plan.steps[plan.chosen]
        marker = {"size": 11, "color": colour}
        name = f"{plan.broker}: plan"
        figure.traces.append(line(name, [chosen.filters], [chosen.over_bytes], colour, mode="markers", marker=marker))
    figure.layout = {
        "xaxis": {"title": {"text": "topic filters"}, **POWERS},
        "yaxis": {"title": {"text": "over-forwarded bytes"}, "rangemode": "tozero"},
    }
    made.plot(figure)
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
