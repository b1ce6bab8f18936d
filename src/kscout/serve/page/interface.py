"""The page at `/docs`: what the service can be asked, read from its OpenAPI description."""

import json
import re
from collections.abc import Iterator
from typing import Any

from kscout.player.pages import templates

Description = dict[str, Any]
"""As OpenAPI writes it."""


def interface_page(described: Description) -> str:
    """Return HTML that lists all requests; it needs no script, and nothing from elsewhere."""
    page = templates("kscout.serve.page").get_template("interface.html.j2")
    schemas = described.get("components", {}).get("schemas", {})
    return page.render(
        title=described["info"]["title"],
        version=described["info"]["version"],
        requests=list(_requests(described)),
        schemas={name: json.dumps(schema, indent=2) for name, schema in schemas.items()},
    )


def _requests(described: Description) -> Iterator[Description]:
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            body = json.dumps(about.get("requestBody", {}))
            yield {
                "method": method.upper(),
                "path": path,
                "summary": about.get("description") or about.get("summary", ""),
                "given": ", ".join(one["name"] for one in about.get("parameters", [])),
                "bodies": list(dict.fromkeys(re.findall(r"#/components/schemas/(\w+)", body))),
                "answers": ", ".join(about.get("responses", {})),
            }
