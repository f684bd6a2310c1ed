"""What a setting would cost: `stoker probe`, `stoker predict`."""
