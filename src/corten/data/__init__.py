"""What was observed: values, mask, domain, axes with their coordinates, transforms, and the record of settings."""
