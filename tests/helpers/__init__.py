"""What several folders of tests share: federations, a relay that cuts, an algorithm that keeps
state, and the papers' plain loops. Nothing in here is a test."""
