"""How far to trust a fit: audit without truth, metrics with truth, and what stands behind the weights."""
