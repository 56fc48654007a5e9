"""Operations that go wrong in every phase, for every cause: the others run on as they were."""
