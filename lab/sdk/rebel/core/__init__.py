"""Parts of the SDK that users import by their full names."""
