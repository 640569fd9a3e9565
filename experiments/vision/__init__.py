"""Paper A's real experiment: vision transformers whose attention gets sparser as they train."""
