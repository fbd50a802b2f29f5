"""Parts of the SDK that are imported by their own names."""
