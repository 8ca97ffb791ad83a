"""The version of kgen: what an installation, a plain checkout and the tuning database call it."""

VERSION = "0.1.0"
