"""The instructor's side: deriving, releasing and judging. A student's tree goes without it."""
