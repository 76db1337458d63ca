"""completion"""
