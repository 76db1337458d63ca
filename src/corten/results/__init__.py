"""What a fit gives back: intervals of any coverage, their summary, and answers for groups, slices, means and draws."""
