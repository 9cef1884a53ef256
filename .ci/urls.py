"""The links of the package's page, from one variable: VITVIZ_HOME, the repository's address."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        if home := os.environ.get("VITVIZ_HOME", "").rstrip("/"):
            metadata["urls"] = {
                "Repository": home,
                "Issues": f"{home}/issues",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
            }
