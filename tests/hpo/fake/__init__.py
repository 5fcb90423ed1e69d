"""Package that workers import once, before they fork attempts."""

import hydragnn.record
