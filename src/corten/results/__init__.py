"""Results of a fit: intervals of any coverage, their summary, groups, joint regions, means and draws."""
