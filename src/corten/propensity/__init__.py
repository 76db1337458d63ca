"""propensity"""
