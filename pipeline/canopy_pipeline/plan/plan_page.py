"""The plan's page: for each broker the curve, and the recommended set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_mqtt.pages import COLOURS, Chart, Page, Series, over

if TYPE_CHECKING:
    from canopy_pipeline.plan.plan_outcome import Plan
    from canopy_pipeline.record.coverage import Coverage


def page(plans: list[Plan], coverage: Coverage) -> Page:
    made = Page(
        "Upstream plan",
        "How few topic filters cover what each broker's clients subscribe to, and what comes along unasked.",
    )
    coverage.show(made)
    about = "Fewer filters to the left. What lies on the curve is what folding passed through; a point is the plan."
    curves = {plan.broker: {float(step.filters): float(step.over_bytes) for step in plan.steps} for plan in plans}
    chosen = {f"{plan.broker}: plan": plan.steps[plan.chosen] for plan in plans}
    x, values = over({**curves, **{name: {float(at.filters): float(at.over_bytes)} for name, at in chosen.items()}})
    figure = Chart("curve", "Filters and what comes along", about, x, unit="over-forwarded bytes")
    figure.x_unit, figure.x_powers, figure.joined = "topic filters", True, True
    if not any(step.over_bytes for plan in plans for step in plan.steps):
        figure.absent = "Nothing comes along unasked, however few the filters."
    for number, name in enumerate(values):
        colour = COLOURS[number % len(plans) % len(COLOURS)]
        figure.series.append(Series(name, values[name], colour, steps=name in curves))
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
