"""Figures derived from records and from tables of trials. Pure: nothing here runs, reads or draws."""
